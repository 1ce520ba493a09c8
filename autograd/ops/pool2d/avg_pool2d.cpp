#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/pool2d/avg_pool2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/ops/support/pool2d.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<AvgPool2dKernel> avg_pool2d_forward{"avg_pool2d", avg_pool2d_forward_cpu,
                                                          LOCKSTEP_CUDA_KERNEL(avg_pool2d_forward_cuda)};
constexpr KernelTable<AvgPool2dKernel> avg_pool2d_backward{"avg_pool2d", avg_pool2d_backward_cpu,
                                                           LOCKSTEP_CUDA_KERNEL(avg_pool2d_backward_cuda)};

Tensor values(const Pool2dGeometry& g, const AvgPool2dDivisor& divisor, const Tensor& x) {
  const Tensor out = empty(g.output_sizes(x.sizes()), options_of(x));
  if (out.numel() > 0) avg_pool2d_forward(x)(g, divisor, as_contiguous(x), out);
  return out;
}

class AvgPool2dBackward final : public Node {
 public:
  const char* name() const override { return "AvgPool2dBackward"; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor()};
    if (!grads[0].defined()) return result;
    result[0] = empty(sizes_, options_of(grads[0]));
    if (result[0].numel() > 0) avg_pool2d_backward(grads[0])(geometry_, divisor_, as_contiguous(grads[0]), result[0]);
    return result;
  }
  TensorList apply_recorded(TensorList grads) override {
    return applied_linearly(this, grads[0],
                            [g = geometry_, divisor = divisor_](const Tensor& x) { return values(g, divisor, x); });
  }

  Pool2dGeometry geometry_;
  AvgPool2dDivisor divisor_;
  Shape sizes_;
};

}  // namespace

Tensor avg_pool2d(const Tensor& x, Size2d kernel, const AvgPool2dOptions& options) {
  const Pool2dGeometry g =
      pool2d_geometry(x, "avg_pool2d", kernel, options.stride, options.padding, 1, options.ceil_mode);
  const AvgPool2dDivisor divisor{options.count_include_pad, options.divisor_override};
  const Tensor out = values(g, divisor, x);
  if (auto* node = record<AvgPool2dBackward>(out, {&x})) {
    node->geometry_ = g;
    node->divisor_ = divisor;
    node->sizes_ = x.sizes();
  }
  return out;
}

}  // namespace lockstep
