#include "lockstep/autograd/ops/isfinite/isfinite.h"

#include <limits>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/unary/unary.h"
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

}  // namespace lockstep
