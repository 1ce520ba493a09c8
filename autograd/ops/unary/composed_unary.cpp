// Functions of one tensor that are composed of others.

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

void check_floating(const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point(), "[{}] expected a floating-point tensor, found {}", op,
                 x.defined() ? name(x.dtype()) : "an undefined one");
}

/// Whether both x and the bound are whole numbers by their types: those beyond 2^53 are no doubles, as clamp() takes
/// its bounds. Throws Error naming `op` for an undefined x and for a bound out of range.
bool has_whole_bound(const Tensor& x, Scalar bound, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  if (x.is_floating_point() || bound.is_floating_point()) return false;
  check_in_range(bound, x.dtype() == kBool ? kInt64 : x.dtype(), op);
  return true;
}

/// An integer or bool tensor as integers.
Tensor integers(const Tensor& x) {
  return x.dtype() == kBool ? x.to(kInt64) : x;
}

}  // namespace

Tensor exp2(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[exp2] the tensor is undefined");
  return pow(Scalar(2.0), x);
}

Tensor logit(const Tensor& x, std::optional<double> eps) {
  LOCKSTEP_CHECK(x.defined(), "[logit] the tensor is undefined");
  const Tensor p = eps ? clamp(x, *eps, 1.0 - *eps) : x;
  return log(p) - log1p(-1.0 * p);  // not of a quotient, in whose slope infinities meet zeros at both ends
}

Tensor clamp_min(const Tensor& x, Scalar min) {
  if (has_whole_bound(x, min, "clamp_min")) return maximum(integers(x), min);
  return clamp(x.is_floating_point() ? x : x.to(kFloat32), min.to_double());
}

Tensor clamp_max(const Tensor& x, Scalar max) {
  if (has_whole_bound(x, max, "clamp_max")) return minimum(integers(x), max);
  return clamp(x.is_floating_point() ? x : x.to(kFloat32), std::nullopt, max.to_double());
}

Tensor clip(const Tensor& x, std::optional<double> min, std::optional<double> max) {
  return clamp(x, min, max);
}

Tensor threshold(const Tensor& x, double threshold, double value) {
  LOCKSTEP_CHECK(x.defined(), "[threshold] the tensor is undefined");
  check_in_range(value, x.dtype(), "threshold");
  return where(x <= threshold, full_like(x.detach(), value), x);
}

Tensor tanhshrink(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[tanhshrink] the tensor is undefined");
  return x - tanh(x);
}

Tensor softshrink(const Tensor& x, double lambd) {
  check_floating(x, "softshrink");
  LOCKSTEP_CHECK(lambd >= 0.0, "[softshrink] expected a lambd of at least 0, found {}", lambd);
  return where(x > lambd, x - lambd, where(x < -lambd, x + lambd, where(isnan(x), x, 0.0)));
}

Tensor hardshrink(const Tensor& x, double lambd) {
  check_floating(x, "hardshrink");
  return where(logical_and(x >= -lambd, x <= lambd), 0.0, x);
}

Tensor glu(const Tensor& x, std::int64_t dim) {
  check_floating(x, "glu");
  LOCKSTEP_CHECK(x.dim() > 0 && x.size(dim) % 2 == 0, "[glu] expected an even size in dimension {}, found {}", dim,
                 to_string(x.sizes()));
  const std::int64_t half = x.size(dim) / 2;
  return x.narrow(dim, 0, half) * sigmoid(x.narrow(dim, half, half));
}

}  // namespace lockstep
