// Methods of Tensor that are other names of functions.

#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

std::vector<Tensor> Tensor::split(std::int64_t size, std::int64_t dim) const {
  return lockstep::split(*this, size, dim);
}
std::vector<Tensor> Tensor::split_with_sizes(const std::vector<std::int64_t>& sizes, std::int64_t dim) const {
  return lockstep::split_with_sizes(*this, sizes, dim);
}
std::vector<Tensor> Tensor::chunk(std::int64_t chunks, std::int64_t dim) const {
  return lockstep::chunk(*this, chunks, dim);
}

Tensor Tensor::cpu() const {
  return to(Device(kCPU));
}
Tensor Tensor::cuda(int index) const {
  return to(Device(kCUDA, index));
}

Tensor Tensor::add(const Tensor& other, double alpha) const {
  return lockstep::add(*this, other, alpha);
}
Tensor Tensor::add(Scalar other) const {
  return lockstep::add(*this, other);
}
Tensor Tensor::sub(const Tensor& other, double alpha) const {
  return lockstep::sub(*this, other, alpha);
}
Tensor Tensor::sub(Scalar other) const {
  return lockstep::sub(*this, other);
}
Tensor Tensor::mul(const Tensor& other) const {
  return lockstep::mul(*this, other);
}
Tensor Tensor::mul(Scalar other) const {
  return lockstep::mul(*this, other);
}
Tensor Tensor::div(const Tensor& other) const {
  return lockstep::div(*this, other);
}
Tensor Tensor::div(Scalar other) const {
  return lockstep::div(*this, other);
}
Tensor Tensor::div(const Tensor& other, RoundingMode rounding) const {
  return lockstep::div(*this, other, rounding);
}
Tensor Tensor::div(Scalar other, RoundingMode rounding) const {
  return lockstep::div(*this, other, rounding);
}
Tensor Tensor::maximum(Scalar other) const {
  return lockstep::maximum(*this, other);
}
Tensor Tensor::minimum(Scalar other) const {
  return lockstep::minimum(*this, other);
}
Tensor Tensor::maximum(const Tensor& other) const {
  return lockstep::maximum(*this, other);
}
Tensor Tensor::minimum(const Tensor& other) const {
  return lockstep::minimum(*this, other);
}
Tensor Tensor::neg() const {
  return lockstep::neg(*this);
}
Tensor Tensor::reciprocal() const {
  return lockstep::reciprocal(*this);
}
Tensor Tensor::square() const {
  return lockstep::square(*this);
}
Tensor Tensor::silu() const {
  return lockstep::silu(*this);
}
Tensor Tensor::leaky_relu(double negative_slope) const {
  return lockstep::leaky_relu(*this, negative_slope);
}
Tensor Tensor::pow(const Tensor& exponent) const {
  return lockstep::pow(*this, exponent);
}

Tensor Tensor::eq(const Tensor& other) const {
  return lockstep::eq(*this, other);
}
Tensor Tensor::eq(Scalar other) const {
  return lockstep::eq(*this, other);
}
Tensor Tensor::ne(const Tensor& other) const {
  return lockstep::ne(*this, other);
}
Tensor Tensor::ne(Scalar other) const {
  return lockstep::ne(*this, other);
}
Tensor Tensor::lt(const Tensor& other) const {
  return lockstep::lt(*this, other);
}
Tensor Tensor::lt(Scalar other) const {
  return lockstep::lt(*this, other);
}
Tensor Tensor::le(const Tensor& other) const {
  return lockstep::le(*this, other);
}
Tensor Tensor::le(Scalar other) const {
  return lockstep::le(*this, other);
}
Tensor Tensor::gt(const Tensor& other) const {
  return lockstep::gt(*this, other);
}
Tensor Tensor::gt(Scalar other) const {
  return lockstep::gt(*this, other);
}
Tensor Tensor::ge(const Tensor& other) const {
  return lockstep::ge(*this, other);
}
Tensor Tensor::ge(Scalar other) const {
  return lockstep::ge(*this, other);
}
Tensor Tensor::isnan() const {
  return lockstep::isnan(*this);
}
Tensor Tensor::isinf() const {
  return lockstep::isinf(*this);
}
Tensor Tensor::isfinite() const {
  return lockstep::isfinite(*this);
}

Tensor Tensor::argmax(std::optional<std::int64_t> dim, bool keepdim) const {
  return lockstep::argmax(*this, dim, keepdim);
}
Tensor Tensor::argmin(std::optional<std::int64_t> dim, bool keepdim) const {
  return lockstep::argmin(*this, dim, keepdim);
}
Tensor Tensor::all(const Shape& dims, bool keepdim) const {
  return lockstep::all(*this, dims, keepdim);
}
Tensor Tensor::any(const Shape& dims, bool keepdim) const {
  return lockstep::any(*this, dims, keepdim);
}
Tensor Tensor::norm(const Shape& dims, bool keepdim) const {
  return lockstep::norm(*this, dims, keepdim);
}

Tensor Tensor::mm(const Tensor& other) const {
  LOCKSTEP_CHECK(dim() == 2 && other.dim() == 2, "[mm] expected two matrices, found shapes {} and {}",
                 to_string(sizes()), to_string(other.sizes()));
  return matmul(other);
}

Tensor Tensor::repeat_interleave(std::int64_t times, std::int64_t dim) const {
  return lockstep::repeat_interleave(*this, times, dim);
}
std::vector<Tensor> Tensor::split(std::initializer_list<std::int64_t> sizes, std::int64_t dim) const {
  return lockstep::split_with_sizes(*this, sizes, dim);
}
Tensor Tensor::vector_norm(double order, const Shape& dims, bool keepdim) const {
  return lockstep::vector_norm(*this, order, dims, keepdim);
}
Tensor Tensor::logical_and(const Tensor& other) const {
  return lockstep::logical_and(*this, other);
}
Tensor Tensor::logical_or(const Tensor& other) const {
  return lockstep::logical_or(*this, other);
}

}  // namespace lockstep
