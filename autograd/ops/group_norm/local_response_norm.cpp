#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/group_norm/group_norm.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"

namespace lockstep {

Tensor local_response_norm(const Tensor& x, std::int64_t size, double alpha, double beta, double k) {
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point() && x.dim() >= 3,
                 "[local_response_norm] expected floating-point x [N, C, ...] of three or more dimensions, found {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(size > 0, "[local_response_norm] expected a size of at least 1, found {}", size);
  if (x.numel() == 0) return x;
  const std::int64_t channels = x.size(1);
  const Tensor squares = square(x).view({x.size(0), 1, channels, x.numel() / (x.size(0) * channels)});
  const Tensor padded = pad(squares, {0, 0, size / 2, (size - 1) / 2});
  const Tensor means = avg_pool2d(padded, {size, 1}, {.stride = 1}).view(x.sizes());
  return x / pow(means * alpha + k, beta);
}

}  // namespace lockstep
