// Methods that Tensor inherits, which are other names of functions.

#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

const Tensor& TensorMethods::self() const {
  return static_cast<const Tensor&>(*this);
}

void* detail::accessed(const Tensor& tensor, DType dtype, std::size_t n, const std::int64_t** sizes,
                       const std::int64_t** strides) {
  LOCKSTEP_CHECK(tensor.dtype() == dtype && tensor.dim() == static_cast<int>(n) && tensor.device().is_cpu(),
                 "[accessor] expected a {} tensor with {} dimensions on the CPU, found {} {} on {}", name(dtype), n,
                 name(tensor.dtype()), to_string(tensor.sizes()), to_string(tensor.device()));
  *sizes = tensor.sizes().begin();
  *strides = tensor.strides().begin();
  return tensor.raw_data();
}

std::int64_t TensorMethods::ndimension() const {
  return self().dim();
}
Tensor TensorMethods::toType(DType dtype) const {
  return self().to(dtype);
}
Tensor TensorMethods::type_as(const Tensor& other) const {
  return self().to(other.dtype());
}
Tensor TensorMethods::data() const {
  return self().detach();
}
Tensor TensorMethods::new_empty(const Shape& sizes) const {
  return empty(sizes, self().options());
}
Tensor TensorMethods::new_zeros(const Shape& sizes) const {
  return zeros(sizes, self().options());
}
Tensor TensorMethods::new_ones(const Shape& sizes) const {
  return ones(sizes, self().options());
}
Tensor TensorMethods::new_full(const Shape& sizes, Scalar value) const {
  return full(sizes, value, self().options());
}
Tensor TensorMethods::bincount(const Tensor& weights, std::int64_t minlength) const {
  return lockstep::bincount(self(), weights, minlength);
}
Tensor TensorMethods::bincount() const {
  return lockstep::bincount(self());
}
Tensor TensorMethods::where(const Tensor& condition, const Tensor& other) const {
  return lockstep::where(condition, self(), other);
}
Tensor TensorMethods::where(const Tensor& condition, Scalar other) const {
  return lockstep::where(condition, self(), other);
}
Tensor TensorMethods::inverse() const {
  return linalg::inv(self());
}
Tensor TensorMethods::swapaxes(std::int64_t a, std::int64_t b) const {
  return self().transpose(a, b);
}
Tensor TensorMethods::unfold(std::int64_t dim, std::int64_t size, std::int64_t step) const {
  return windows(self(), dim, size, step);
}
bool TensorMethods::equal(const Tensor& other) const {
  return lockstep::equal(self(), other);
}
bool TensorMethods::allclose(const Tensor& other, double rtol, double atol, bool equal_nan) const {
  return lockstep::allclose(self(), other, rtol, atol, equal_nan);
}
Tensor TensorMethods::isclose(const Tensor& other, double rtol, double atol, bool equal_nan) const {
  return lockstep::isclose(self(), other, rtol, atol, equal_nan);
}
Tensor TensorMethods::nonzero() const {
  return lockstep::nonzero(self());
}
Tensor TensorMethods::count_nonzero(const Shape& dims) const {
  return lockstep::count_nonzero(self(), dims);
}
Tensor TensorMethods::logical_xor(const Tensor& other) const {
  return lockstep::logical_xor(self(), other);
}
Tensor TensorMethods::histc(std::int64_t bins, double min, double max) const {
  return lockstep::histc(self(), bins, min, max);
}
Tensor TensorMethods::atan2(const Tensor& other) const {
  return lockstep::atan2(self(), other);
}
Tensor TensorMethods::hypot(const Tensor& other) const {
  return lockstep::hypot(self(), other);
}
Tensor TensorMethods::fmod(const Tensor& other) const {
  return lockstep::fmod(self(), other);
}
Tensor TensorMethods::fmod(Scalar other) const {
  return lockstep::fmod(self(), other);
}
Tensor TensorMethods::remainder(const Tensor& other) const {
  return lockstep::remainder(self(), other);
}
Tensor TensorMethods::remainder(Scalar other) const {
  return lockstep::remainder(self(), other);
}
Tensor TensorMethods::logaddexp(const Tensor& other) const {
  return lockstep::logaddexp(self(), other);
}
Tensor TensorMethods::lerp(const Tensor& end, double weight) const {
  return lockstep::lerp(self(), end, weight);
}
Tensor TensorMethods::addcmul(const Tensor& a, const Tensor& b, double value) const {
  return lockstep::addcmul(self(), a, b, value);
}
Tensor TensorMethods::addcdiv(const Tensor& a, const Tensor& b, double value) const {
  return lockstep::addcdiv(self(), a, b, value);
}
Tensor TensorMethods::tan() const {
  return lockstep::tan(self());
}
Tensor TensorMethods::sinh() const {
  return lockstep::sinh(self());
}
Tensor TensorMethods::cosh() const {
  return lockstep::cosh(self());
}
Tensor TensorMethods::asin() const {
  return lockstep::asin(self());
}
Tensor TensorMethods::acos() const {
  return lockstep::acos(self());
}
Tensor TensorMethods::atan() const {
  return lockstep::atan(self());
}
Tensor TensorMethods::exp2() const {
  return lockstep::exp2(self());
}
Tensor TensorMethods::frac() const {
  return lockstep::frac(self());
}
Tensor TensorMethods::logit(std::optional<double> eps) const {
  return lockstep::logit(self(), eps);
}
Tensor TensorMethods::lgamma() const {
  return lockstep::lgamma(self());
}
Tensor TensorMethods::digamma() const {
  return lockstep::digamma(self());
}
Tensor TensorMethods::erfinv() const {
  return lockstep::erfinv(self());
}
Tensor TensorMethods::nan_to_num(double nan, std::optional<double> posinf, std::optional<double> neginf) const {
  return lockstep::nan_to_num(self(), nan, posinf, neginf);
}
Tensor TensorMethods::nansum(const Shape& dims, bool keepdim) const {
  return lockstep::nansum(self(), dims, keepdim);
}
Tensor TensorMethods::nanmean(const Shape& dims, bool keepdim) const {
  return lockstep::nanmean(self(), dims, keepdim);
}
Tensor TensorMethods::median() const {
  return lockstep::median(self());
}
TopK TensorMethods::median(std::int64_t dim, bool keepdim) const {
  return lockstep::median(self(), dim, keepdim);
}
TopK TensorMethods::kthvalue(std::int64_t k, std::int64_t dim, bool keepdim) const {
  return lockstep::kthvalue(self(), k, dim, keepdim);
}
TopK TensorMethods::cummax(std::int64_t dim) const {
  return lockstep::cummax(self(), dim);
}
TopK TensorMethods::cummin(std::int64_t dim) const {
  return lockstep::cummin(self(), dim);
}
Tensor TensorMethods::logcumsumexp(std::int64_t dim) const {
  return lockstep::logcumsumexp(self(), dim);
}
Tensor TensorMethods::quantile(double q, std::optional<std::int64_t> dim, bool keepdim) const {
  return lockstep::quantile(self(), q, dim, keepdim);
}
Tensor TensorMethods::quantile(const Tensor& q, std::optional<std::int64_t> dim, bool keepdim) const {
  return lockstep::quantile(self(), q, dim, keepdim);
}
Tensor TensorMethods::diff(std::int64_t n, std::int64_t dim) const {
  return lockstep::diff(self(), n, dim);
}
Tensor TensorMethods::cross(const Tensor& other, std::int64_t dim) const {
  return lockstep::cross(self(), other, dim);
}
Tensor TensorMethods::trace() const {
  return lockstep::trace(self());
}
Tensor TensorMethods::diag(std::int64_t diagonal) const {
  return lockstep::diag(self(), diagonal);
}
Tensor TensorMethods::diag_embed(std::int64_t offset, std::int64_t dim1, std::int64_t dim2) const {
  return lockstep::diag_embed(self(), offset, dim1, dim2);
}
Tensor TensorMethods::addmm(const Tensor& a, const Tensor& b, double beta, double alpha) const {
  return lockstep::addmm(self(), a, b, beta, alpha);
}
Tensor TensorMethods::baddbmm(const Tensor& a, const Tensor& b, double beta, double alpha) const {
  return lockstep::baddbmm(self(), a, b, beta, alpha);
}
Tensor TensorMethods::det() const {
  return lockstep::det(self());
}
Tensor TensorMethods::logdet() const {
  return lockstep::logdet(self());
}
Tensor TensorMethods::tile(const Shape& times) const {
  return lockstep::tile(self(), times);
}
Tensor TensorMethods::take(const Tensor& index) const {
  return lockstep::take(self(), index);
}
Tensor TensorMethods::take_along_dim(const Tensor& index, std::int64_t dim) const {
  return lockstep::take_along_dim(self(), index, dim);
}
Tensor TensorMethods::index_fill(std::int64_t dim, const Tensor& index, Scalar value) const {
  return lockstep::index_fill(self(), dim, index, value);
}
Tensor TensorMethods::index_copy(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return lockstep::index_copy(self(), dim, index, source);
}
Tensor TensorMethods::masked_scatter(const Tensor& mask, const Tensor& source) const {
  return lockstep::masked_scatter(self(), mask, source);
}
Tensor TensorMethods::scatter_reduce(std::int64_t dim, const Tensor& index, const Tensor& source,
                                     std::string_view reduce, bool include_self) const {
  return lockstep::scatter_reduce(self(), dim, index, source, reduce, include_self);
}

Tensor TensorMethods::expand_as(const Tensor& other) const {
  return self().expand(other.sizes());
}
Tensor TensorMethods::view_as(const Tensor& other) const {
  return self().view(other.sizes());
}
Tensor TensorMethods::reshape_as(const Tensor& other) const {
  return self().reshape(other.sizes());
}
Tensor TensorMethods::broadcast_to(const Shape& sizes) const {
  return self().expand(sizes);
}
Tensor TensorMethods::unflatten(std::int64_t dim, const Shape& sizes) const {
  return lockstep::unflatten(self(), dim, sizes);
}
Tensor TensorMethods::movedim(std::int64_t from, std::int64_t to) const {
  return lockstep::movedim(self(), from, to);
}
Tensor TensorMethods::T() const {
  return self().t();
}
Tensor TensorMethods::mT() const {
  LOCKSTEP_CHECK(self().dim() >= 2, "[mT] expected a tensor of at least two dimensions, found {}",
                 to_string(self().sizes()));
  return self().transpose(-2, -1);
}
Tensor TensorMethods::multinomial(std::int64_t count, bool replacement) const {
  return lockstep::multinomial(self(), count, replacement);
}
Tensor TensorMethods::bernoulli() const {
  return lockstep::bernoulli(self());
}
Tensor TensorMethods::bernoulli(double p) const {
  return lockstep::bernoulli(self(), p);
}

}  // namespace lockstep
