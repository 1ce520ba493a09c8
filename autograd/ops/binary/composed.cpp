// Functions of the family that are composed of others.

#include <limits>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"

namespace lockstep {

Tensor xlogy(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[xlogy] a tensor is undefined");
  // Not where the logarithm is finite: there the slope for a is log(b) also at 0.
  const Tensor bad = logical_or(b <= 0, b == std::numeric_limits<double>::infinity());
  const Tensor none = logical_and(a == 0, bad);
  return where(none, 0, a * log(where(none, 1, b)));
}

Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight) {
  LOCKSTEP_CHECK(a.defined() && b.defined() && weight.defined(), "[lerp] a tensor is undefined");
  return a + weight * (b - a);
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

Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return add(x, mul(a, b), value);
}
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return add(x, div(a, b), value);
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
