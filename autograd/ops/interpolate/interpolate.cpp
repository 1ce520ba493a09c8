#include "lockstep/autograd/ops/interpolate/interpolate.h"

#include <cmath>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/interpolate/interpolate_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<InterpolateForward> forward_kernel{"interpolate", interpolate_cpu,
                                                         LOCKSTEP_CUDA_KERNEL(interpolate_cuda)};
constexpr KernelTable<InterpolateBackward> backward_kernel{"interpolate backward", interpolate_backward_cpu,
                                                           LOCKSTEP_CUDA_KERNEL(interpolate_backward_cuda)};

class InterpolateBackwardNode final : public Node {
 public:
  const char* name() const override { return "InterpolateBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor x_grad = empty(sizes, options_of(grads[0]));
    if (x_grad.numel() > 0) backward_kernel(x_grad)(geometry, as_contiguous(grads[0]), x_grad);
    return {x_grad};
  }

  TensorList apply_recorded(TensorList grads) override {
    return applied_linearly(this, grads[0], [g = geometry, sizes = grads[0].sizes()](const Tensor& x) {
      const Tensor out = empty(sizes, options_of(x));
      if (out.numel() > 0) forward_kernel(x)(g, as_contiguous(x), out);
      return out;
    });
  }

  InterpolateGeometry geometry;
  Shape sizes;
};

InterpolateAxis axis_of(std::int64_t in, std::int64_t out, const InterpolateOptions& options) {
  InterpolateAxis axis{.in = in, .out = out, .corners = options.align_corners};
  axis.nearest = options.mode == InterpolateMode::nearest;
  if (axis.corners && !axis.nearest)
    axis.scale = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0.0;
  else
    axis.scale = options.scale_factor > 0.0 && !options.recompute_scale_factor
                     ? 1.0 / options.scale_factor
                     : static_cast<double>(in) / static_cast<double>(out);
  return axis;
}

std::int64_t size_of(std::int64_t in, std::int64_t asked, double factor) {
  return factor > 0.0 ? static_cast<std::int64_t>(std::floor(static_cast<double>(in) * factor)) : asked;
}

}  // namespace

Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
  const bool nearest = options.mode == InterpolateMode::nearest;
  if (x.defined() && x.dtype() == kUInt8 && nearest)  // float32 holds every value
    return interpolate(x.to(kFloat32), options).to(kUInt8);
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point(), "[interpolate] expected a floating-point tensor");
  LOCKSTEP_CHECK(!nearest || !options.align_corners, "[interpolate] align_corners is for bilinear and linear alone");
  LOCKSTEP_CHECK((options.size == Size2d(0)) == (options.scale_factor > 0.0) && options.scale_factor >= 0.0,
                 "[interpolate] expected either a size or a positive scale_factor");
  LOCKSTEP_CHECK((x.dim() == 4 && options.mode != InterpolateMode::linear) ||
                     (x.dim() == 3 && options.mode != InterpolateMode::bilinear),
                 "[interpolate] expected images [n, c, h, w] (nearest or bilinear) or rows [n, c, w] (nearest or "
                 "linear), found {}",
                 to_string(x.sizes()));
  const bool rows = x.dim() == 3;
  const std::int64_t h = rows ? 1 : x.size(-2), w = x.size(-1);
  InterpolateGeometry g;
  g.planes = h * w == 0 ? 0 : x.numel() / (h * w);
  g.rows = rows ? InterpolateAxis{.in = 1, .out = 1, .nearest = true}
                : axis_of(h, size_of(h, options.size.h, options.scale_factor), options);
  g.columns = axis_of(w, size_of(w, options.size.w, options.scale_factor), options);
  LOCKSTEP_CHECK(h > 0 && w > 0 && g.rows.out > 0 && g.columns.out > 0,
                 "[interpolate] images of {} cannot become {}x{}", to_string(x.sizes()), g.rows.out, g.columns.out);
  Shape sizes = x.sizes();
  if (!rows) sizes[2] = g.rows.out;
  sizes[x.dim() - 1] = g.columns.out;
  const Tensor out = empty(sizes, options_of(x));
  if (out.numel() > 0) forward_kernel(x)(g, as_contiguous(x), out);
  if (auto* node = record<InterpolateBackwardNode>(out, {&x})) {
    node->geometry = g;
    node->sizes = x.sizes();
  }
  return out;
}

}  // namespace lockstep
