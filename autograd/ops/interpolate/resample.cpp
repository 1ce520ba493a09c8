// Interpolation axis by axis.

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/interpolate/interpolate_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<ResampleForward> forward_kernel{"interpolate along an axis", resample_cpu,
                                                      LOCKSTEP_CUDA_KERNEL(resample_cuda)};
constexpr KernelTable<ResampleBackward> backward_kernel{"interpolate along an axis backward", resample_backward_cpu,
                                                        LOCKSTEP_CUDA_KERNEL(resample_backward_cuda)};

Tensor resampled(const ResampleGeometry& geometry, const Tensor& x, const Shape& sizes) {
  const Tensor out = empty(sizes, options_of(x));
  if (out.numel() > 0) forward_kernel(x)(geometry, as_contiguous(x), out);
  return out;
}

class ResampleBackwardNode final : public Node {
 public:
  const char* name() const override { return "ResampleBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor x_grad = empty(sizes, options_of(grads[0]));
    if (x_grad.numel() > 0) backward_kernel(x_grad)(geometry, as_contiguous(grads[0]), x_grad);
    return {x_grad};
  }
  TensorList apply_recorded(TensorList grads) override {
    return applied_linearly(
        this, grads[0], [g = geometry, sizes = grads[0].sizes()](const Tensor& x) { return resampled(g, x, sizes); });
  }

  ResampleGeometry geometry;
  Shape sizes;
};

}  // namespace

Tensor resample(const Tensor& x, int dim, const InterpolateAxis& axis) {
  ResampleGeometry geometry{.axis = axis};
  for (int d = 0; d < x.dim(); ++d)
    if (d != dim) (d < dim ? geometry.outer : geometry.inner) *= x.sizes()[d];
  Shape sizes = x.sizes();
  sizes[dim] = axis.out;
  Tensor out = resampled(geometry, x, sizes);
  if (auto* node = record<ResampleBackwardNode>(out, {&x})) {
    node->geometry = geometry;
    node->sizes = x.sizes();
  }
  return out;
}

}  // namespace lockstep
