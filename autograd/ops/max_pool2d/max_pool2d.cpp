#include "lockstep/autograd/ops/max_pool2d/max_pool2d.h"

#include "lockstep/autograd/ops/max_pool2d/max_pool2d_kernels.h"
#include "lockstep/autograd/ops/support/pool2d.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<MaxPool2dForward> max_pool2d_forward{
    "max_pool2d", max_pool2d_forward_cpu, LOCKSTEP_CUDA_KERNEL(max_pool2d_forward_cuda), max_pool2d_forward_reference};
constexpr KernelTable<MaxPool2dBackward> max_pool2d_backward{"max_pool2d backward", max_pool2d_backward_cpu,
                                                             LOCKSTEP_CUDA_KERNEL(max_pool2d_backward_cuda),
                                                             max_pool2d_backward_reference};

class MaxPool2dBackwardNode final : public Node {
 public:
  const char* name() const override { return "MaxPool2dBackward"; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor()};
    if (!grads[0].defined()) return result;
    result[0] = empty(sizes_, options_of(grads[0]));
    if (result[0].numel() > 0) max_pool2d_backward(grads[0])(geometry_, as_contiguous(grads[0]), saved(0), result[0]);
    return result;
  }

  Pool2dGeometry geometry_;
  Shape sizes_;
};

}  // namespace

Tensor max_pool2d(const Tensor& x, Size2d kernel, const MaxPool2dOptions& options) {
  const Pool2dGeometry g =
      pool2d_geometry(x, "max_pool2d", kernel, options.stride, options.padding, options.dilation, options.ceil_mode);
  Tensor out = empty(g.output_sizes(x.sizes()), options_of(x));
  auto* node = record<MaxPool2dBackwardNode>(out, {&x});
  Tensor positions;
  if (node)
    positions = empty(out.sizes(), {.dtype = kernel.h * kernel.w <= 256 ? kUInt8 : kInt32, .device = x.device()});
  if (out.numel() > 0) max_pool2d_forward(x)(g, as_contiguous(x), out, positions);
  if (node) {
    node->geometry_ = g;
    node->sizes_ = x.sizes();
    node->save(positions);
  }
  return out;
}

}  // namespace lockstep
