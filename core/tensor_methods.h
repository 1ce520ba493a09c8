#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "lockstep/core/dtype.h"
#include "lockstep/core/shape.h"

namespace lockstep {

class Tensor;
struct TensorOptions;
struct TopK;
template <typename T, std::size_t N>
class TensorAccessor;

/// The function of Tensor::register_hook(): it is called with a gradient, and returns another one, an undefined tensor
/// or nothing.
class TensorHook {
 public:
  template <std::invocable<const Tensor&> F, typename Nothing = Tensor>
  TensorHook(F hook) {
    if constexpr (!std::is_void_v<std::invoke_result_t<F&, const Tensor&>>)
      function_ = std::move(hook);
    else if (!is_empty(hook))
      function_ = [hook = std::move(hook)](const Tensor& gradient) mutable {
        hook(gradient);
        return Nothing();
      };
  }
  /// A function object that holds none.
  template <typename F>
  static bool is_empty(const F& hook) {
    if constexpr (requires { hook == nullptr; })
      return hook == nullptr;
    else
      return false;
  }
  /// Empty if it was made of an empty one.
  std::function<Tensor(const Tensor&)> function() && { return std::move(function_); }

 private:
  std::function<Tensor(const Tensor&)> function_;
};

/// The base of Tensor: methods that are other names of functions, each of which its own header describes, and whose
/// first argument is the tensor. Defined in autograd/ as the methods of Tensor itself.
class TensorMethods {
 public:
  // --- without gradients ------------------------------------------------------------------------------------------
  std::int64_t ndimension() const;                          ///< dim()
  Tensor toType(DType dtype) const;                         ///< to()
  Tensor type_as(const Tensor& other) const;                ///< to its dtype
  Tensor data() const;                                      ///< detach()
  Tensor new_empty(const Shape& sizes) const;               ///< empty() of this dtype and device
  Tensor new_zeros(const Shape& sizes) const;               ///< zeros() of this dtype and device
  Tensor new_ones(const Shape& sizes) const;                ///< ones() of this dtype and device
  Tensor new_full(const Shape& sizes, Scalar value) const;  ///< full() of this dtype and device
  bool equal(const Tensor& other) const;                    ///< see lockstep::equal
  bool allclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8,
                bool equal_nan = false) const;  ///< as equal
  Tensor isclose(const Tensor& other, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false) const;  ///< bool
  Tensor nonzero() const;                                                           ///< positions of what is not 0
  Tensor count_nonzero(const Shape& dims = {}) const;                               ///< how many there are
  Tensor logical_xor(const Tensor& other) const;                                    ///< which are not 0 in just one
  Tensor bincount(const Tensor& weights, std::int64_t minlength = 0) const;         ///< how often each number occurs
  Tensor bincount() const;                                                          ///< the same unweighted
  Tensor bernoulli() const;                                                         ///< see lockstep::bernoulli
  Tensor bernoulli(double p) const;                                                 ///< as bernoulli
  Tensor multinomial(std::int64_t count, bool replacement = false) const;           ///< see lockstep::multinomial
  Tensor histc(std::int64_t bins = 100, double min = 0.0, double max = 0.0) const;  ///< a histogram
  /// Elements by their indices: `auto a = x.accessor<float, 2>(); a[i][j]`. Of tensors on the CPU, of dtype T and with
  /// N dimensions; throws Error otherwise. The tensor must outlive it, so there is none of a temporary.
  template <typename T, std::size_t N>
  TensorAccessor<T, N> accessor() const&;
  template <typename T, std::size_t N>
  TensorAccessor<T, N> accessor() && = delete;

  // --- in place ---------------------------------------------------------------------------------------------------
  const Tensor& log_() const;                                                            ///< natural logarithm
  const Tensor& tanh_() const;                                                           ///< hyperbolic tangent
  const Tensor& sigmoid_() const;                                                        ///< 1 / (1 + exp(-x))
  const Tensor& square_() const;                                                         ///< x * x
  const Tensor& rsqrt_() const;                                                          ///< 1 / sqrt(x)
  const Tensor& reciprocal_() const;                                                     ///< 1 / x
  const Tensor& floor_() const;                                                          ///< rounded downwards
  const Tensor& ceil_() const;                                                           ///< rounded upwards
  const Tensor& round_() const;                                                          ///< to the nearest
  const Tensor& clamp_min_(Scalar min) const;                                            ///< clamp_() with one bound
  const Tensor& clamp_max_(Scalar max) const;                                            ///< clamp_() with one bound
  const Tensor& index_fill_(std::int64_t dim, const Tensor& index, Scalar value) const;  ///< see lockstep::index_fill
  const Tensor& index_copy_(std::int64_t dim, const Tensor& index, const Tensor& source) const;  ///< as index_fill_
  const Tensor& masked_scatter_(const Tensor& mask, const Tensor& source) const;                 ///< as index_fill_
  const Tensor& random_(std::int64_t low, std::int64_t high) const;  ///< whole numbers in [low, high), as uniform_
  const Tensor& bernoulli_(double p = 0.5) const;                    ///< 1 with probability p, else 0, as uniform_
  const Tensor& bernoulli_(const Tensor& p) const;                   ///< 1 with the probabilities p, which broadcast
  const Tensor& exponential_(double lambd = 1.0) const;  ///< drawn with density lambd exp(-lambd x), as uniform_

  // --- differentiable ---------------------------------------------------------------------------------------------
  Tensor atan2(const Tensor& other) const;                                     ///< angle of (other, x)
  Tensor hypot(const Tensor& other) const;                                     ///< sqrt(x^2 + other^2)
  Tensor fmod(const Tensor& other) const;                                      ///< the rest, of x's sign
  Tensor fmod(Scalar other) const;                                             ///< the same for a number
  Tensor remainder(const Tensor& other) const;                                 ///< the rest, of other's sign
  Tensor remainder(Scalar other) const;                                        ///< the same for a number
  Tensor logaddexp(const Tensor& other) const;                                 ///< log(exp(x) + exp(other))
  Tensor lerp(const Tensor& end, double weight) const;                         ///< x + weight (end - x)
  Tensor addcmul(const Tensor& a, const Tensor& b, double value = 1.0) const;  ///< x + value a b
  Tensor addcdiv(const Tensor& a, const Tensor& b, double value = 1.0) const;  ///< x + value a / b
  Tensor where(const Tensor& condition, const Tensor& other) const;            ///< x where it holds
  Tensor where(const Tensor& condition, Scalar other) const;                   ///< the same for a number
  Tensor tan() const;                                                          ///< tangent
  Tensor sinh() const;                                                         ///< hyperbolic sine
  Tensor cosh() const;                                                         ///< hyperbolic cosine
  Tensor asin() const;                                                         ///< inverse of sin()
  Tensor acos() const;                                                         ///< inverse of cos()
  Tensor atan() const;                                                         ///< inverse of tan()
  Tensor exp2() const;                                                         ///< 2 to the power x
  Tensor frac() const;                                                         ///< x - trunc(x)
  Tensor logit(std::optional<double> eps = std::nullopt) const;                ///< inverse of sigmoid()
  Tensor lgamma() const;                                                       ///< log of the gamma function
  Tensor digamma() const;                                                      ///< its derivative
  Tensor erfinv() const;                                                       ///< inverse of erf()
  Tensor nan_to_num(double nan = 0.0, std::optional<double> posinf = std::nullopt,
                    std::optional<double> neginf = std::nullopt) const;              ///< see lockstep::nan_to_num
  Tensor nansum(const Shape& dims = {}, bool keepdim = false) const;                 ///< without what is NaN
  Tensor nanmean(const Shape& dims = {}, bool keepdim = false) const;                ///< without what is NaN
  Tensor median() const;                                                             ///< of all elements
  TopK median(std::int64_t dim, bool keepdim = false) const;                         ///< along dim
  TopK kthvalue(std::int64_t k, std::int64_t dim = -1, bool keepdim = false) const;  ///< the k-th smallest
  TopK cummax(std::int64_t dim) const;                                               ///< running maxima
  TopK cummin(std::int64_t dim) const;                                               ///< running minima
  Tensor logcumsumexp(std::int64_t dim) const;                                       ///< running logsumexp
  Tensor quantile(double q, std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false) const;  ///< one of it
  Tensor quantile(const Tensor& q, std::optional<std::int64_t> dim = std::nullopt,
                  bool keepdim = false) const;                     ///< all
  Tensor diff(std::int64_t n = 1, std::int64_t dim = -1) const;    ///< of neighbours
  Tensor cross(const Tensor& other, std::int64_t dim = -1) const;  ///< cross product
  Tensor trace() const;                                            ///< sum of the diagonal
  Tensor diag(std::int64_t diagonal = 0) const;                    ///< of a matrix, or a matrix of it
  Tensor diag_embed(std::int64_t offset = 0, std::int64_t dim1 = -2, std::int64_t dim2 = -1) const;  ///< as diag
  Tensor addmm(const Tensor& a, const Tensor& b, double beta = 1.0, double alpha = 1.0) const;  ///< beta x + alpha a b
  Tensor baddbmm(const Tensor& a, const Tensor& b, double beta = 1.0, double alpha = 1.0) const;  ///< of batches
  Tensor inverse() const;                                                                         ///< of matrices
  Tensor det() const;                                                                             ///< of matrices
  Tensor logdet() const;                                                                          ///< of matrices
  Tensor T() const;                                                                               ///< t(), a view
  Tensor mT() const;                                             ///< a view with the last two dimensions exchanged
  Tensor expand_as(const Tensor& other) const;                   ///< expand() to the sizes of `other`
  Tensor view_as(const Tensor& other) const;                     ///< view() with the sizes of `other`
  Tensor reshape_as(const Tensor& other) const;                  ///< reshape() to the sizes of `other`
  Tensor broadcast_to(const Shape& sizes) const;                 ///< expand()
  Tensor unflatten(std::int64_t dim, const Shape& sizes) const;  ///< a view with dim cut into these sizes
  Tensor movedim(std::int64_t from, std::int64_t to) const;      ///< a view with dimension `from` at place `to`
  Tensor swapaxes(std::int64_t a, std::int64_t b) const;         ///< transpose()
  Tensor unfold(std::int64_t dim, std::int64_t size, std::int64_t step) const;   ///< lockstep::windows(), a copy
  Tensor tile(const Shape& times) const;                                         ///< as repeat()
  Tensor take(const Tensor& index) const;                                        ///< of all elements in a row
  Tensor take_along_dim(const Tensor& index, std::int64_t dim) const;            ///< as gather()
  Tensor index_fill(std::int64_t dim, const Tensor& index, Scalar value) const;  ///< a copy with slices filled
  Tensor index_copy(std::int64_t dim, const Tensor& index,
                    const Tensor& source) const;                          ///< a copy with slices replaced
  Tensor masked_scatter(const Tensor& mask, const Tensor& source) const;  ///< a copy with values put in
  Tensor scatter_reduce(std::int64_t dim, const Tensor& index, const Tensor& source, std::string_view reduce,
                        bool include_self = true) const;  ///< see lockstep::scatter_reduce

 protected:
  TensorMethods() = default;
  TensorMethods(const TensorMethods&) = default;
  TensorMethods& operator=(const TensorMethods&) = default;
  ~TensorMethods() = default;

 private:
  const Tensor& self() const;
};

namespace detail {
/// The first element of a tensor with n dimensions on the CPU; throws Error for others. Strides are in elements.
void* accessed(const Tensor& tensor, DType dtype, std::size_t n, const std::int64_t** sizes,
               const std::int64_t** strides);
}  // namespace detail

/// What Tensor::accessor() gives: an index gives the next dimension, the last one an element.
template <typename T, std::size_t N>
class TensorAccessor {
 public:
  /// Of `data` with N sizes and strides, which it does not copy.
  TensorAccessor(T* data, const std::int64_t* sizes, const std::int64_t* strides)
      : data_(data), sizes_(sizes), strides_(strides) {}
  /// Not checked.
  decltype(auto) operator[](std::int64_t i) const {
    if constexpr (N == 1) {
      return data_[i * *strides_];
    } else {
      return TensorAccessor<T, N - 1>(data_ + i * *strides_, sizes_ + 1, strides_ + 1);
    }
  }
  std::int64_t size(std::int64_t d) const { return sizes_[d]; }  ///< of dimension d
  T* data() const { return data_; }                              ///< the first element

 private:
  T* data_;
  const std::int64_t* sizes_;
  const std::int64_t* strides_;
};

template <typename T, std::size_t N>
TensorAccessor<T, N> TensorMethods::accessor() const& {
  const std::int64_t *sizes = nullptr, *strides = nullptr;
  void* const data = detail::accessed(self(), dtype_of<T>, N, &sizes, &strides);
  return {static_cast<T*>(data), sizes, strides};
}

}  // namespace lockstep
