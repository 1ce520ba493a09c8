#pragma once

#include <atomic>
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/ref_counted.h"
#include "lockstep/core/shape.h"
#include "lockstep/core/storage.h"
#include "lockstep/core/tensor_methods.h"

namespace lockstep {

enum class RoundingMode : std::uint8_t;
namespace indexing {
class TensorIndex;
}

/// What autograd hangs on a tensor; null for tensors that take no part in it. Defined in autograd/autograd_meta.h.
struct AutogradMetaBase {
  virtual ~AutogradMetaBase() = default;
};

/// The shared part of a Tensor. Written by core and autograd only.
struct TensorImpl final : public RefCounted {
  StoragePtr storage;                          ///< shared with views
  Shape sizes;                                 ///< of each dimension
  Shape strides;                               ///< in elements
  std::int64_t offset = 0;                     ///< in elements
  std::int64_t numel = 0;                      ///< product of the sizes
  DType dtype = kFloat32;                      ///< type of the elements
  bool contiguous = true;                      ///< row-major without gaps
  std::atomic<bool> saved{false};              ///< a backward function keeps it, or a view of it
  bool unrecorded_view = false;                ///< of a tensor with gradients, made while nothing was recorded
  std::unique_ptr<AutogradMetaBase> autograd;  ///< null: takes no part in autograd
  // See Note [Writing through views].
  IntrusivePtr<TensorImpl> viewed;       ///< of a view made while recording: whose elements it shows
  std::atomic<std::uint32_t> views{0};   ///< how many such views of it there are
  std::atomic<std::uint32_t> writes{0};  ///< recorded writes into it; of a view: those that its history knows

  ~TensorImpl() {
    if (viewed) viewed->views.fetch_sub(1, std::memory_order_relaxed);
  }
  void* operator new(std::size_t bytes);
  void operator delete(void* pointer) noexcept;
};

/// Note [Tensor]
/// A cheap handle on shared storage plus shape, strides, offset and dtype. Copying a Tensor copies the handle. Names
/// and semantics follow libtorch. A default-constructed Tensor is undefined: whatever asks for its shape, dtype or
/// memory throws Error.
///
/// Methods under "differentiable" record themselves for backward(); they are defined beside their operation in
/// autograd/ops/, so a program that links lockstep::core alone cannot call them.
/// A Tensor may be used from several threads as long as none of them writes.
class Tensor : public TensorMethods {
 public:
  Tensor() = default;
  explicit Tensor(IntrusivePtr<TensorImpl> impl) : impl_(std::move(impl)) {}
  Tensor(const Tensor&) = default;
  Tensor(Tensor&&) noexcept = default;
  ~Tensor() = default;
  /// A variable becomes a handle on another tensor: `a = b`.
  Tensor& operator=(const Tensor&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  /// `x[i] = y`: on the left is no variable but what an expression gives, whose elements are written, as by copy_().
  const Tensor& operator=(const Tensor& source) const&& { return copy_(source); }
  const Tensor& operator=(Scalar value) const&&;  ///< the same for a number, as by fill_()

  // --- what it is -----------------------------------------------------------------------------------------------
  bool defined() const { return static_cast<bool>(impl_); }  ///< not made by Tensor()
  const Shape& shape() const { return get().sizes; }         ///< size of each dimension
  const Shape& sizes() const { return get().sizes; }         ///< the same
  const Shape& strides() const { return get().strides; }  ///< distance of neighbours along each dimension, in elements
  int dim() const { return get().sizes.dim(); }           ///< number of dimensions; 0 for a scalar
  /// Size of dimension d; negative d counts from the end. Throws Error if out of range.
  std::int64_t size(std::int64_t d) const;
  std::int64_t numel() const { return get().numel; }         ///< number of elements
  std::int64_t offset() const { return get().offset; }       ///< of the first element in the storage, in elements
  DType dtype() const { return get().dtype; }                ///< type of the elements
  Device device() const { return get().storage->device(); }  ///< where they are
  TensorOptions options() const;                             ///< dtype and device, for factories.h
  bool is_cuda() const { return device().is_cuda(); }        ///< on a CUDA device
  bool is_contiguous() const { return get().contiguous; }    ///< row-major without gaps
  bool is_floating_point() const { return lockstep::is_floating_point(dtype()); }  ///< half types included
  /// Of the elements, without gaps that strides leave.
  std::size_t nbytes() const { return static_cast<std::size_t>(numel()) * element_size(dtype()); }
  /// True if both handles name the same tensor object (not merely equal values).
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  // --- its memory -----------------------------------------------------------------------------------------------
  /// First element's address (offset applied).
  void* raw_data() const {
    const TensorImpl& impl = get();
    return static_cast<char*>(impl.storage->data()) + static_cast<std::size_t>(impl.offset) * element_size(impl.dtype);
  }
  /// Typed address of the first element. Throws Error if T is not the tensor's dtype. Elements lie at strides().
  template <typename T>
  T* data() const {
    if (dtype_of<T> != dtype()) throw_dtype_mismatch(dtype_of<T>);
    return static_cast<T*>(raw_data());
  }
  using TensorMethods::data;
  /// data(), by PyTorch's name.
  template <typename T>
  T* data_ptr() const {
    return data<T>();
  }
  /// The value of a one-element tensor, converted to T: bool, or any integer or floating-point type of the language.
  /// Copies from the device. Throws Error if T is an integer type whose range the value is out of, as NaN is.
  template <typename T = double>
  T item() const;
  /// All elements in row-major order, converted to T (double, float, std::int64_t, std::int32_t, std::uint8_t or bool).
  /// Copies from the device.
  template <typename T>
  std::vector<T> to_vector() const;
  const StoragePtr& storage() const { return get().storage; }         ///< the memory, shared with views
  TensorImpl* impl() const { return impl_.get(); }                    ///< for the library
  const IntrusivePtr<TensorImpl>& impl_ptr() const { return impl_; }  ///< for the library

  // --- views and copies without gradients (core) ----------------------------------------------------------------
  /// A view of the same storage. Not differentiable. Throws Error if it would reach outside the storage.
  Tensor as_strided(const Shape& sizes, const Shape& strides, std::int64_t offset) const;
  /// A view that shares storage and takes no part in autograd.
  Tensor detach() const;

  // --- autograd (autograd/) -------------------------------------------------------------------------------------
  bool requires_grad() const;  ///< gradients are computed for it
  /// Only floating-point leaves may require gradients. Returns *this.
  const Tensor& set_requires_grad(bool value) const;
  /// set_requires_grad(), by PyTorch's name.
  const Tensor& requires_grad_(bool value = true) const { return set_requires_grad(value); }
  bool is_leaf() const;  ///< not the result of a recorded operation
  /// The accumulated gradient; undefined until backward() reached this leaf, or this result after retain_grad().
  Tensor grad() const;
  /// Replaces the gradient; an undefined tensor clears it. Shape, dtype and device must match.
  void set_grad(Tensor grad) const;
  /// Computes gradients of this tensor with respect to every leaf it depends on, and adds them to their grad().
  /// `gradient` may be left out for a one-element tensor. Without `retain_graph` the graph is freed on the way.
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;
  /// Calls `hook(*this)` each time this leaf's gradient has been accumulated. Returns a key for remove_hook().
  /// The hook keeps its state from call to call. Throws Error if it holds this tensor, which then neither would free.
  std::uint64_t register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const;
  /// Calls `hook(gradient)` in each backward() with the whole gradient of this tensor, leaf or result, before it is
  /// used further; what it returns, unless undefined, takes the gradient's place and must have its shape, dtype and
  /// device. Returns a key for remove_hook(). In-place operations after this are not seen. A hook may return nothing.
  /// Throws Error if the tensor does not require gradients or the hook holds it.
  std::uint64_t register_hook(TensorHook hook) const;
  void remove_hook(std::uint64_t key) const;  ///< of either kind
  /// Makes backward() keep this result's gradient in grad(), added up as a leaf's; nothing changes for a leaf.
  const Tensor& retain_grad() const;

  // --- differentiable: shape (autograd/ops/view, ...) -----------------------------------------------------------
  /// Other sizes over the same memory; a -1 among them is worked out. Throws Error where a copy would be needed.
  Tensor view(const Shape& sizes) const;
  Tensor reshape(const Shape& sizes) const;  ///< view() if that is possible, else a copy
  /// Merges dimensions start_dim to end_dim; a copy where no view will do.
  Tensor flatten(std::int64_t start_dim = 0, std::int64_t end_dim = -1) const;
  Tensor transpose(std::int64_t dim0, std::int64_t dim1) const;  ///< a view with two dimensions exchanged
  /// Transpose of a matrix.
  Tensor t() const;
  Tensor permute(const Shape& dims) const;  ///< a view with dimensions in this order
  /// Sizes of -1 keep the present size.
  Tensor expand(const Shape& sizes) const;
  Tensor squeeze() const;                    ///< a view without dimensions of size 1
  Tensor squeeze(std::int64_t dim) const;    ///< without this one, if it is of size 1
  Tensor squeeze(const Shape& dims) const;   ///< without those of these that are of size 1
  Tensor unsqueeze(std::int64_t dim) const;  ///< a view with a dimension of size 1 before dim
  /// Elements start, start + step, ... below end along dim; negative start and end count from the end, as in Python.
  Tensor slice(std::int64_t dim, std::int64_t start, std::int64_t end = INT64_MAX, std::int64_t step = 1) const;
  /// The length elements from start along dim.
  Tensor narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const;
  Tensor select(std::int64_t dim, std::int64_t index) const;  ///< a view of one index along dim, which goes away
  /// select(0, index).
  Tensor operator[](std::int64_t index) const { return select(0, index); }
  /// The slices along dim that the index [n] (int64 or int32) names; see lockstep::index_select.
  Tensor index_select(std::int64_t dim, const Tensor& index) const;
  Tensor gather(std::int64_t dim, const Tensor& index) const;  ///< elements along dim by index; see lockstep::gather
  /// Elements chosen by tensors of positions or by masks, one for each dimension; see lockstep::index.
  Tensor index(const std::vector<Tensor>& indices) const;
  /// In place: writes `values` to them; see lockstep::index_put.
  const Tensor& index_put_(const std::vector<Tensor>& indices, const Tensor& values, bool accumulate = false) const;
  /// Elements chosen as in Python: `x.index({0, Slice(1), "...", mask})`; see lockstep::index.
  Tensor index(std::initializer_list<indexing::TensorIndex> indices) const;
  /// In place: writes `values`, which broadcast, to them.
  const Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, const Tensor& values) const;
  const Tensor& index_put_(std::initializer_list<indexing::TensorIndex> indices, Scalar value) const;  ///< a number
  Tensor masked_select(const Tensor& mask) const;                      ///< the elements where mask is true, in a row
  Tensor masked_fill(const Tensor& mask, const Tensor& value) const;   ///< `value`, of no dimension, where mask is true
  Tensor masked_fill(const Tensor& mask, Scalar value) const;          ///< the same for a number
  const Tensor& masked_fill_(const Tensor& mask, Scalar value) const;  ///< the same in place
  std::vector<Tensor> split(std::int64_t size,
                            std::int64_t dim = 0) const;  ///< views of `size` each, the last the rest
  std::vector<Tensor> split_with_sizes(const std::vector<std::int64_t>& sizes, std::int64_t dim = 0) const;  ///< views
  std::vector<Tensor> split(std::initializer_list<std::int64_t> sizes, std::int64_t dim = 0) const;  ///< the same
  std::vector<Tensor> chunk(std::int64_t chunks, std::int64_t dim = 0) const;  ///< views; see lockstep::chunk
  std::vector<Tensor> unbind(std::int64_t dim = 0) const;  ///< views: select() of each index along dim
  Tensor diagonal(std::int64_t offset = 0, std::int64_t dim0 = 0, std::int64_t dim1 = 1) const;  ///< a view
  Tensor repeat(const Shape& times) const;                         ///< copies side by side; see lockstep::repeat
  Tensor flip(const Shape& dims) const;                            ///< a copy in reverse order along these dimensions
  Tensor roll(const Shape& shifts, const Shape& dims = {}) const;  ///< a copy that is shifted round
  Tensor tril(std::int64_t diagonal = 0) const;                    ///< with 0 above a diagonal
  Tensor triu(std::int64_t diagonal = 0) const;                    ///< with 0 below a diagonal
  TopK topk(std::int64_t k, std::int64_t dim = -1, bool largest = true) const;  ///< see lockstep::topk
  TopK sort(std::int64_t dim = -1, bool descending = false) const;              ///< see lockstep::sort
  Tensor argsort(std::int64_t dim = -1, bool descending = false) const;         ///< its indices
  /// A copy with `source` written at the positions of the index; see lockstep::scatter.
  Tensor scatter(std::int64_t dim, const Tensor& index, const Tensor& source) const;
  Tensor scatter(std::int64_t dim, const Tensor& index, Scalar value) const;  ///< the same for a number
  /// A copy with `source` added at the positions of the index; see lockstep::scatter_add.
  Tensor scatter_add(std::int64_t dim, const Tensor& index, const Tensor& source) const;
  const Tensor& scatter_(std::int64_t dim, const Tensor& index, const Tensor& source) const;      ///< in place
  const Tensor& scatter_(std::int64_t dim, const Tensor& index, Scalar value) const;              ///< in place
  const Tensor& scatter_add_(std::int64_t dim, const Tensor& index, const Tensor& source) const;  ///< in place
  const Tensor& index_add_(std::int64_t dim, const Tensor& index, const Tensor& source) const;    ///< in place
  Tensor repeat_interleave(std::int64_t times, std::int64_t dim) const;  ///< see lockstep::repeat_interleave
  /// A copy with slices of `source` added to those that the index names; see lockstep::index_add.
  Tensor index_add(std::int64_t dim, const Tensor& index, const Tensor& source) const;

  // --- differentiable: copies and casts (autograd/ops/copy) -----------------------------------------------------
  Tensor contiguous() const;                    ///< itself if it is row-major without gaps, else such a copy
  Tensor clone() const;                         ///< a contiguous copy
  Tensor to(DType dtype) const;                 ///< cast; itself if it is of that type
  Tensor to(Device device) const;               ///< copied there; itself if it is there
  Tensor to(Device device, DType dtype) const;  ///< both
  Tensor cpu() const;                           ///< to() the first CPU
  Tensor cuda(int index = 0) const;             ///< to() a CUDA device
  /// In place: broadcasts, casts and copies across devices. Returns *this.
  const Tensor& copy_(const Tensor& source) const;

  // --- differentiable: arithmetic (autograd/ops/binary, unary) --------------------------------------------------
  Tensor operator-() const;  ///< negated; throws Error for bool
  /// In place; recorded like every operation, refused on a leaf that requires gradients while recording.
  const Tensor& add_(const Tensor& other, double alpha = 1.0) const;
  const Tensor& add_(Scalar value) const;                             ///< the same for a number
  const Tensor& mul_(const Tensor& other) const;                      ///< in place, as add_
  const Tensor& mul_(Scalar value) const;                             ///< in place, as add_
  const Tensor& sub_(const Tensor& other, double alpha = 1.0) const;  ///< in place, as add_
  const Tensor& sub_(Scalar value) const;                             ///< in place, as add_
  const Tensor& div_(const Tensor& other) const;                      ///< in place, as add_
  const Tensor& div_(Scalar value) const;                             ///< in place, as add_
  Tensor add(const Tensor& other, double alpha = 1.0) const;          ///< x + alpha * other
  Tensor add(Scalar other) const;                                     ///< operator+, as the next ones by their names
  Tensor sub(const Tensor& other, double alpha = 1.0) const;          ///< x - alpha * other
  Tensor sub(Scalar other) const;                                     ///< operator-
  Tensor mul(const Tensor& other) const;                              ///< operator*
  Tensor mul(Scalar other) const;                                     ///< operator*
  Tensor div(const Tensor& other) const;                              ///< operator/
  Tensor div(Scalar other) const;                                     ///< operator/
  Tensor div(const Tensor& other, RoundingMode rounding) const;       ///< rounded to a whole number
  Tensor div(Scalar other, RoundingMode rounding) const;              ///< the same for a number
  Tensor maximum(Scalar other) const;                                 ///< the same for a number
  Tensor minimum(Scalar other) const;                                 ///< the same for a number
  Tensor maximum(const Tensor& other) const;                          ///< the larger, element by element
  Tensor minimum(const Tensor& other) const;                          ///< the smaller, element by element
  Tensor neg() const;                                                 ///< -x
  Tensor reciprocal() const;                                          ///< 1 / x
  Tensor square() const;                                              ///< x * x
  Tensor silu() const;                                                ///< x * sigmoid(x)
  Tensor leaky_relu(double negative_slope = 0.01) const;              ///< x above 0, negative_slope * x below
  Tensor pow(const Tensor& exponent) const;                           ///< x to the powers of a tensor
  const Tensor& exp_() const;                                         ///< in place, as the next ones
  const Tensor& sqrt_() const;                                        ///< square root, in place
  const Tensor& neg_() const;                                         ///< -x, in place
  const Tensor& abs_() const;                                         ///< absolute value, in place
  const Tensor& sign_() const;                                        ///< -1, 0 or 1, in place
  const Tensor& relu_() const;                                        ///< max(x, 0), in place
  const Tensor& pow_(double exponent) const;  ///< a power, in place; of integers a whole one, 2.0 like 2
  const Tensor& lerp_(const Tensor& end, double weight) const;  ///< x + weight (end - x), in place
  /// x + value a b, in place.
  const Tensor& addcmul_(const Tensor& a, const Tensor& b, double value = 1.0) const;
  /// x + value a / b, in place.
  const Tensor& addcdiv_(const Tensor& a, const Tensor& b, double value = 1.0) const;
  const Tensor& zero_() const;              ///< in place; no gradient flows through it
  const Tensor& fill_(Scalar value) const;  ///< in place; no gradient flows through it
  Tensor exp() const;                       ///< element by element, as the next ones
  Tensor log() const;                       ///< natural logarithm
  Tensor sqrt() const;                      ///< square root
  Tensor rsqrt() const;                     ///< 1 / sqrt(x)
  Tensor pow(double exponent) const;        ///< x to a power
  Tensor abs() const;                       ///< absolute value; gradient 0 at 0
  Tensor tanh() const;                      ///< hyperbolic tangent
  Tensor sigmoid() const;                   ///< 1 / (1 + exp(-x))
  Tensor relu() const;                      ///< max(x, 0); gradient 0 at 0
  Tensor sign() const;                      ///< -1, 0 or 1; without gradient
  Tensor floor() const;                     ///< rounded downwards; without gradient
  Tensor ceil() const;                      ///< rounded upwards; without gradient
  Tensor round() const;                     ///< to the nearest, halves to even; no gradient
  Tensor trunc() const;                     ///< rounded towards 0; without gradient
  Tensor sin() const;                       ///< sine
  Tensor cos() const;                       ///< cosine
  Tensor erf() const;                       ///< error function
  Tensor log1p() const;                     ///< log(1 + x)
  Tensor expm1() const;                     ///< exp(x) - 1
  Tensor log2() const;                      ///< logarithm to base 2
  Tensor log10() const;                     ///< logarithm to base 10
  Tensor clamp_min(Scalar min) const;       ///< clamp() with one bound
  Tensor clamp_max(Scalar max) const;       ///< clamp() with one bound
  /// clamp() in place. Integers take whole bounds, 2.0 like 2, and stay integers.
  const Tensor& clamp_(std::optional<double> min, std::optional<double> max = std::nullopt) const;
  /// In place: drawn anew; no gradient flows through it. See fill_uniform.
  const Tensor& uniform_(double low = 0.0, double high = 1.0) const;
  const Tensor& normal_(double mean = 0.0, double std = 1.0) const;  ///< as uniform_; see fill_normal
  /// The nearest value within the bounds that are given; the gradient is 0 outside. See lockstep::clamp.
  Tensor clamp(std::optional<double> min, std::optional<double> max = std::nullopt) const;
  /// The same for bounds that are tensors; either may be undefined.
  Tensor clamp(const Tensor& min, const Tensor& max = {}) const;

  // --- comparisons: bool tensors, without gradients --------------------------------------------------------------
  Tensor eq(const Tensor& other) const;           ///< operator==, as the next ones by their names
  Tensor eq(Scalar other) const;                  ///< operator==
  Tensor ne(const Tensor& other) const;           ///< operator!=
  Tensor ne(Scalar other) const;                  ///< operator!=
  Tensor lt(const Tensor& other) const;           ///< operator<
  Tensor lt(Scalar other) const;                  ///< operator<
  Tensor le(const Tensor& other) const;           ///< operator<=
  Tensor le(Scalar other) const;                  ///< operator<=
  Tensor gt(const Tensor& other) const;           ///< operator>
  Tensor gt(Scalar other) const;                  ///< operator>
  Tensor ge(const Tensor& other) const;           ///< operator>=
  Tensor ge(Scalar other) const;                  ///< operator>=
  Tensor isnan() const;                           ///< which elements are not a number
  Tensor isinf() const;                           ///< which elements are infinite, of either sign
  Tensor isfinite() const;                        ///< which elements are neither
  Tensor logical_not() const;                     ///< which elements are 0
  Tensor logical_and(const Tensor& other) const;  ///< which elements are not 0 in both
  Tensor logical_or(const Tensor& other) const;   ///< which elements are not 0 in one

  // --- differentiable: reductions (autograd/ops/reduce) ---------------------------------------------------------
  /// Over all elements (empty dims) or the given dims; cast to `dtype` before, if one is given.
  Tensor sum(const Shape& dims = {}, bool keepdim = false, std::optional<DType> dtype = std::nullopt) const;
  /// As sum, divided by the count.
  Tensor mean(const Shape& dims = {}, bool keepdim = false, std::optional<DType> dtype = std::nullopt) const;
  /// Divides by n - correction (1: the unbiased estimate, as in PyTorch).
  Tensor var(const Shape& dims = {}, double correction = 1.0, bool keepdim = false) const;
  Tensor max(const Shape& dims = {}, bool keepdim = false) const;   ///< as sum; equal maxima share the gradient
  Tensor min(const Shape& dims = {}, bool keepdim = false) const;   ///< as sum; equal minima share the gradient
  Tensor logsumexp(const Shape& dims, bool keepdim = false) const;  ///< log of the sum of exp, without overflow
  /// int64 index of the first maximum along dim; without dim, among all elements in row-major order.
  Tensor argmax(std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false) const;
  Tensor argmin(std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false) const;  ///< of the first minimum
  Tensor all(const Shape& dims = {}, bool keepdim = false) const;  ///< whether every element is nonzero
  Tensor any(const Shape& dims = {}, bool keepdim = false) const;  ///< whether an element is nonzero
  /// The root of the sum of squares. Its gradient at 0 is 0.
  Tensor norm(const Shape& dims = {}, bool keepdim = false) const;
  /// The norm of an order, as in libtorch: `x.norm(1)` is the sum of magnitudes, `x.norm(2, dim)` and `x.norm(2, {0,
  /// 1})` are over dimensions, and `x.norm({1})` is the Euclidean norm over dimension 1.
  template <typename T, typename D = Shape>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool> && std::convertible_to<D, Shape>) Tensor
      norm(T order, const D& dims = D(), bool keepdim = false)
  const { return vector_norm(static_cast<double>(order), Shape(dims), keepdim); }
  template <typename T>
  requires(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) Tensor
      norm(T order, std::initializer_list<std::int64_t> dims, bool keepdim = false)
  const { return vector_norm(static_cast<double>(order), dims, keepdim); }
  Tensor vector_norm(double order, const Shape& dims = {}, bool keepdim = false) const;  ///< see lockstep::vector_norm
  Tensor std(const Shape& dims = {}, double correction = 1.0, bool keepdim = false) const;  ///< root of var()
  Tensor prod(std::optional<std::int64_t> dim = std::nullopt, bool keepdim = false,
              std::optional<DType> dtype = std::nullopt) const;                       ///< see lockstep::prod
  Tensor amax(const Shape& dims = {}, bool keepdim = false) const;                    ///< max()
  Tensor amin(const Shape& dims = {}, bool keepdim = false) const;                    ///< min()
  Tensor cumsum(std::int64_t dim, std::optional<DType> dtype = std::nullopt) const;   ///< running sums along dim
  Tensor cumprod(std::int64_t dim, std::optional<DType> dtype = std::nullopt) const;  ///< running products along dim

  // --- differentiable: products and softmax ---------------------------------------------------------------------
  Tensor matmul(const Tensor& other) const;  ///< matrix product; see lockstep::matmul
  Tensor mm(const Tensor& other) const;      ///< matmul() of two matrices; throws Error for other shapes
  Tensor bmm(const Tensor& other) const;     ///< matmul() of two batches of matrices; throws Error for other shapes
  Tensor mv(const Tensor& vector) const;     ///< matmul() of a matrix and a vector; throws Error for other shapes
  Tensor dot(const Tensor& other) const;     ///< matmul() of two vectors; throws Error for other shapes
  Tensor outer(const Tensor& other) const;   ///< all products of the elements of two vectors
  /// exp(x) divided by its sum along dim; cast to `dtype` before, if one is given.
  Tensor softmax(std::int64_t dim, std::optional<DType> dtype = std::nullopt) const;
  Tensor log_softmax(std::int64_t dim, std::optional<DType> dtype = std::nullopt) const;  ///< its logarithm

 private:
  const TensorImpl& get() const {
    if (!impl_) [[unlikely]]
      throw_undefined();
    return *impl_;
  }
  [[noreturn]] static void throw_undefined();
  [[noreturn]] void throw_dtype_mismatch(DType wanted) const;

  IntrusivePtr<TensorImpl> impl_;
};

std::ostream& operator<<(std::ostream& out, DType dtype);  ///< "float32"
/// Shape, dtype, device and up to 8 x 8 elements of the last two dimensions.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace lockstep
