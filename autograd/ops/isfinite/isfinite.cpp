#include "lockstep/autograd/ops/isfinite/isfinite.h"

#include <limits>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/copy/copy.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor constant(const Tensor& x, bool value) {
  return full(x.sizes(), value ? 1.0 : 0.0, {.dtype = kBool, .device = x.device()});
}

}  // namespace

Tensor isnan(const Tensor& x) {
  return x.is_floating_point() ? ne(x, x) : constant(x, false);
}

Tensor isinf(const Tensor& x) {
  const NoGradGuard no_grad;
  return x.is_floating_point() ? eq(abs(x), kInfinity) : constant(x, false);
}

Tensor isfinite(const Tensor& x) {
  const NoGradGuard no_grad;
  return x.is_floating_point() ? lt(abs(x), kInfinity) : constant(x, true);  // a comparison with NaN is false
}

Tensor nan_to_num(const Tensor& x, double nan, std::optional<double> posinf, std::optional<double> neginf) {
  LOCKSTEP_CHECK(x.defined(), "[nan_to_num] the tensor is undefined");
  if (!x.is_floating_point()) return clone(x);
  const double largest = x.dtype() == kFloat64    ? std::numeric_limits<double>::max()
                         : x.dtype() == kFloat16  ? 65504.0
                         : x.dtype() == kBFloat16 ? 0x1.fep127
                                                  : static_cast<double>(std::numeric_limits<float>::max());
  const auto number = [&](double value) { return scalar_tensor(value, {.dtype = x.dtype(), .device = x.device()}); };
  const Tensor finite = where(eq(x, kInfinity), number(posinf.value_or(largest)),
                              where(eq(x, -kInfinity), number(neginf.value_or(-largest)), x));
  return where(isnan(x), number(nan), finite);
}

}  // namespace lockstep
