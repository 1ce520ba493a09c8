#include "lockstep/autograd/ops/conv2d_pool/conv2d_pool.h"

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/conv2d_pool/conv2d_pool_kernels.h"
#include "lockstep/autograd/ops/max_pool2d/max_pool2d.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

// As a reference, the three operations have kernels of their own.
constexpr KernelTable<Conv2dPoolForward> forward_kernel{"conv2d_pool_relu", conv2d_pool_forward_cpu,
                                                        LOCKSTEP_CUDA_KERNEL(conv2d_pool_forward_cuda)};
constexpr KernelTable<Conv2dPoolBackward> backward_kernel{"conv2d_pool_relu backward", conv2d_pool_backward_cpu,
                                                          LOCKSTEP_CUDA_KERNEL(conv2d_pool_backward_cuda)};

bool is_fused(const Conv2dGeometry& g, const Tensor& x) {
  if (g.n == 0 || g.in == 0 || g.out == 0 || g.h == 0 || g.w == 0) return false;
  if (x.device().is_cuda()) return g.oh >= 2 && g.ow >= 2;
  return x.dtype() == kFloat32 && !reference_kernels() && conv2d_pool_supports(g);
}

class Conv2dPoolReluBackward final : public Node {
 public:
  const char* name() const override { return "Conv2dPoolReluBackward"; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor(), Tensor(), Tensor()};
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &weight = saved(1), &positions = saved(2);
    if (needs_grad(0)) result[0] = empty(x.sizes(), options_of(x));
    if (needs_grad(1) || needs_grad(2)) result[1] = empty(weight.sizes(), options_of(weight));
    if (needs_grad(2)) result[2] = empty({geometry_.out}, options_of(weight));
    backward_kernel(x)(geometry_, as_contiguous(grads[0]), positions, as_contiguous(x), as_contiguous(weight),
                       result[0], result[1], result[2]);
    return result;
  }

  Conv2dGeometry geometry_;
};

}  // namespace

Tensor conv2d_pool_relu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return conv2d_pool_relu(t..., options); }, x, weight, bias);
  const Conv2dGeometry g = conv2d_geometry(x, weight, bias, options);
  if (!is_fused(g, x)) return relu(max_pool2d(conv2d(x, weight, bias, options), 2));

  const Tensor out = empty({g.n, g.out, g.oh / 2, g.ow / 2}, options_of(x));
  auto* node = record<Conv2dPoolReluBackward>(out, {&x, &weight, &bias});
  const Tensor positions = node ? empty(out.sizes(), {.dtype = kUInt8, .device = x.device()}) : Tensor();
  forward_kernel(x)(g, as_contiguous(x), as_contiguous(weight), bias.defined() ? as_contiguous(bias) : bias, out,
                    positions);
  if (node) {
    node->geometry_ = g;
    node->save(x, weight, positions);
  }
  return out;
}

}  // namespace lockstep
