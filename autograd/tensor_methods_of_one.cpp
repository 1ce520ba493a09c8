// Methods of Tensor that are functions of one tensor, or place its elements elsewhere, by other names.

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/random.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

Tensor Tensor::operator-() const {
  return lockstep::neg(*this);
}
Tensor Tensor::exp() const {
  return lockstep::exp(*this);
}
Tensor Tensor::log() const {
  return lockstep::log(*this);
}
Tensor Tensor::sqrt() const {
  return lockstep::sqrt(*this);
}
Tensor Tensor::rsqrt() const {
  return lockstep::rsqrt(*this);
}
Tensor Tensor::pow(double exponent) const {
  return lockstep::pow(*this, exponent);
}
Tensor Tensor::abs() const {
  return lockstep::abs(*this);
}
Tensor Tensor::tanh() const {
  return lockstep::tanh(*this);
}
Tensor Tensor::sigmoid() const {
  return lockstep::sigmoid(*this);
}
Tensor Tensor::relu() const {
  return lockstep::relu(*this);
}
Tensor Tensor::clamp(std::optional<double> min, std::optional<double> max) const {
  return lockstep::clamp(*this, min, max);
}

Tensor Tensor::sign() const {
  return lockstep::sign(*this);
}
Tensor Tensor::floor() const {
  return lockstep::floor(*this);
}
Tensor Tensor::ceil() const {
  return lockstep::ceil(*this);
}
Tensor Tensor::round() const {
  return lockstep::round(*this);
}
Tensor Tensor::trunc() const {
  return lockstep::trunc(*this);
}
Tensor Tensor::sin() const {
  return lockstep::sin(*this);
}
Tensor Tensor::cos() const {
  return lockstep::cos(*this);
}
Tensor Tensor::erf() const {
  return lockstep::erf(*this);
}
Tensor Tensor::log1p() const {
  return lockstep::log1p(*this);
}
Tensor Tensor::expm1() const {
  return lockstep::expm1(*this);
}
Tensor Tensor::log2() const {
  return lockstep::log2(*this);
}
Tensor Tensor::log10() const {
  return lockstep::log10(*this);
}
Tensor Tensor::logical_not() const {
  return lockstep::logical_not(*this);
}
Tensor Tensor::clamp_min(Scalar min) const {
  return lockstep::clamp_min(*this, min);
}
Tensor Tensor::clamp_max(Scalar max) const {
  return lockstep::clamp_max(*this, max);
}

std::vector<Tensor> Tensor::unbind(std::int64_t dim) const {
  return lockstep::unbind(*this, dim);
}
Tensor Tensor::diagonal(std::int64_t offset, std::int64_t dim0, std::int64_t dim1) const {
  return lockstep::diagonal(*this, offset, dim0, dim1);
}
Tensor Tensor::repeat(const Shape& times) const {
  return lockstep::repeat(*this, times);
}
Tensor Tensor::flip(const Shape& dims) const {
  return lockstep::flip(*this, dims);
}
Tensor Tensor::roll(const Shape& shifts, const Shape& dims) const {
  return lockstep::roll(*this, shifts, dims);
}
Tensor Tensor::tril(std::int64_t diagonal) const {
  return lockstep::tril(*this, diagonal);
}
Tensor Tensor::triu(std::int64_t diagonal) const {
  return lockstep::triu(*this, diagonal);
}
TopK Tensor::topk(std::int64_t k, std::int64_t dim, bool largest) const {
  return lockstep::topk(*this, k, dim, largest);
}
TopK Tensor::sort(std::int64_t dim, bool descending) const {
  return lockstep::sort(*this, dim, descending);
}
Tensor Tensor::argsort(std::int64_t dim, bool descending) const {
  return lockstep::argsort(*this, dim, descending);
}
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return lockstep::scatter(*this, dim, index, source);
}
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, Scalar value) const {
  return lockstep::scatter(*this, dim, index, value);
}
Tensor Tensor::scatter_add(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return lockstep::scatter_add(*this, dim, index, source);
}
Tensor Tensor::index_add(std::int64_t dim, const Tensor& index, const Tensor& source) const {
  return lockstep::index_add(*this, dim, index, source);
}

Tensor Tensor::std(const Shape& dims, double correction, bool keepdim) const {
  return lockstep::std(*this, dims, correction, keepdim);
}
Tensor Tensor::prod(std::optional<std::int64_t> dim, bool keepdim, std::optional<DType> dtype) const {
  return lockstep::prod(*this, dim, keepdim, dtype);
}
Tensor Tensor::amax(const Shape& dims, bool keepdim) const {
  return lockstep::amax(*this, dims, keepdim);
}
Tensor Tensor::amin(const Shape& dims, bool keepdim) const {
  return lockstep::amin(*this, dims, keepdim);
}
Tensor Tensor::cumsum(std::int64_t dim, std::optional<DType> dtype) const {
  return lockstep::cumsum(*this, dim, dtype);
}
Tensor Tensor::cumprod(std::int64_t dim, std::optional<DType> dtype) const {
  return lockstep::cumprod(*this, dim, dtype);
}
Tensor Tensor::bmm(const Tensor& other) const {
  return lockstep::bmm(*this, other);
}
Tensor Tensor::mv(const Tensor& vector) const {
  return lockstep::mv(*this, vector);
}
Tensor Tensor::dot(const Tensor& other) const {
  return lockstep::dot(*this, other);
}
Tensor Tensor::outer(const Tensor& other) const {
  return lockstep::outer(*this, other);
}

const Tensor& Tensor::clamp_(std::optional<double> min, std::optional<double> max) const {
  const bool recording = GradMode::enabled() && requires_grad();
  check_in_place(*this, recording, "clamp_");
  if (recording) return replace_values(*this, lockstep::clamp(lockstep::clone(*this), min, max), "clamp_");
  const NoGradGuard values_only;
  const Tensor result = lockstep::clamp(detach(), min, max);
  check_result_fits(result.dtype(), *this, "clamp_");
  copy_values(result, *this);
  return *this;
}
const Tensor& Tensor::uniform_(double low, double high) const {
  const bool recording = GradMode::enabled() && requires_grad();
  check_in_place(*this, recording, "uniform_");
  if (recording) zero_();  // what was computed before is gone, and with it the way back
  fill_uniform(*this, low, high);
  return *this;
}
const Tensor& Tensor::normal_(double mean, double std) const {
  const bool recording = GradMode::enabled() && requires_grad();
  check_in_place(*this, recording, "normal_");
  if (recording) zero_();  // what was computed before is gone, and with it the way back
  fill_normal(*this, mean, std);
  return *this;
}

}  // namespace lockstep
