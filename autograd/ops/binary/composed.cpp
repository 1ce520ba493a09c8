// Functions of the family that are composed of others.

#include <cmath>
#include <limits>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/binary_kernels.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"

namespace lockstep {

namespace {
DType floating(DType dtype) {
  return is_floating_point(dtype) ? dtype : kFloat32;
}
}  // namespace

Tensor copysign(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[copysign] a tensor is undefined");
  const DType dtype = floating(binary::promote(a, b));
  return abs(a.to(dtype)) * flat_in(binary_values(BinaryOp::copysign, Scalar(1.0), b).to(dtype), b);
}
Tensor copysign(const Tensor& a, Scalar b) {
  LOCKSTEP_CHECK(a.defined(), "[copysign] the tensor is undefined");
  return abs(a.to(floating(a.dtype()))) * Scalar(std::copysign(1.0, b.to_double()));
}

Tensor heaviside(const Tensor& x, const Tensor& values) {
  LOCKSTEP_CHECK(x.defined() && values.defined() && x.dtype() == values.dtype(),
                 "[heaviside] expected two tensors of one dtype");
  return where(x.detach() == 0, values.detach(), (x > 0).to(x.dtype()));
}

Tensor xlogy(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[xlogy] a tensor is undefined");
  // Not where the logarithm is finite: there the slope for a is log(b) also at 0.
  const DType dtype = floating(binary::promote(a, b));
  const Tensor x = a.to(dtype), y = b.to(dtype);
  const Tensor bad = logical_or(y <= 0, y == std::numeric_limits<double>::infinity());
  const Tensor none = logical_and(x == 0, bad);
  return where(none, 0, x * log(where(none, 1, y)));
}

Tensor isclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  LOCKSTEP_CHECK(a.defined() && b.defined() && a.dtype() == b.dtype(), "[isclose] expected two tensors of one dtype");
  LOCKSTEP_CHECK(rtol >= 0.0 && atol >= 0.0, "[isclose] expected tolerances of at least 0, found {} and {}", rtol,
                 atol);
  const NoGradGuard values_only;
  const auto real = [](const Tensor& x) { return x.is_floating_point() ? x.detach() : x.to(kFloat64); };
  const Tensor x = real(a), y = real(b), near = abs(x - y) <= atol + rtol * abs(y);
  const Tensor close = logical_or(a == b, logical_and(near, isfinite(y)));
  return equal_nan ? logical_or(close, logical_and(isnan(x), isnan(y))) : close;
}

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  return div(a, b, RoundingMode::floor);
}
Tensor floor_divide(const Tensor& a, Scalar b) {
  return div(a, b, RoundingMode::floor);
}

Tensor operator%(const Tensor& a, const Tensor& b) {
  return remainder(a, b);
}
Tensor operator%(const Tensor& a, Scalar b) {
  return remainder(a, b);
}

}  // namespace lockstep
