#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/pool2d/adaptive_avg_pool2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/ops/support/pool2d.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<AdaptiveAvgPool2dKernel> adaptive_avg_pool2d_forward{
    "adaptive_avg_pool2d", adaptive_avg_pool2d_forward_cpu, LOCKSTEP_CUDA_KERNEL(adaptive_avg_pool2d_forward_cuda)};
constexpr KernelTable<AdaptiveAvgPool2dKernel> adaptive_avg_pool2d_backward{
    "adaptive_avg_pool2d", adaptive_avg_pool2d_backward_cpu, LOCKSTEP_CUDA_KERNEL(adaptive_avg_pool2d_backward_cuda)};

Tensor values(const Pool2dGeometry& g, const Tensor& x) {
  const Tensor out = empty(g.output_sizes(x.sizes()), options_of(x));
  if (out.numel() > 0) adaptive_avg_pool2d_forward(x)(g, as_contiguous(x), out);
  return out;
}

class AdaptiveAvgPool2dBackward final : public Node {
 public:
  const char* name() const override { return "AdaptiveAvgPool2dBackward"; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor()};
    if (!grads[0].defined()) return result;
    result[0] = empty(sizes_, options_of(grads[0]));
    if (result[0].numel() > 0) adaptive_avg_pool2d_backward(grads[0])(geometry_, as_contiguous(grads[0]), result[0]);
    return result;
  }
  TensorList apply_recorded(TensorList grads) override {
    return applied_linearly(this, grads[0], [g = geometry_](const Tensor& x) { return values(g, x); });
  }

  Pool2dGeometry geometry_;
  Shape sizes_;
};

}  // namespace

Tensor adaptive_avg_pool2d(const Tensor& x, Size2d output) {
  check_pool2d_input(x, "adaptive_avg_pool2d");
  LOCKSTEP_CHECK(output.h >= 0 && output.w >= 0,
                 "[adaptive_avg_pool2d] expected output sizes of at least 0, found {}x{}", output.h, output.w);
  Pool2dGeometry g;
  g.h = x.size(-2), g.w = x.size(-1), g.oh = output.h, g.ow = output.w;
  g.planes = x.numel() / (g.h * g.w);
  const Tensor out = values(g, x);
  if (auto* node = record<AdaptiveAvgPool2dBackward>(out, {&x})) {
    node->geometry_ = g;
    node->sizes_ = x.sizes();
  }
  return out;
}

}  // namespace lockstep
