#include "lockstep/autograd/ops/interpolate/interpolate.h"

#include <cmath>

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/interpolate/interpolate_kernels.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
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

constexpr KernelTable<ResampleForward> resample_kernel{"interpolate along an axis", resample_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(resample_cuda)};
constexpr KernelTable<ResampleBackward> resample_backward_kernel{
    "interpolate along an axis backward", resample_backward_cpu, LOCKSTEP_CUDA_KERNEL(resample_backward_cuda)};

/// x as a tensor of `sizes`, by kernels for one kind of geometry.
template <typename Geometry, typename Kernel>
Tensor resized(const Tensor& x, const Shape& sizes, const Geometry& geometry, const KernelTable<Kernel>& forward,
               const KernelTable<Kernel>& backward) {
  const auto through = [geometry](const KernelTable<Kernel>& kernel, const Shape& to) {
    return [geometry, &kernel, to](const Tensor& from) {
      const Tensor out = empty(to, options_of(from));
      if (out.numel() > 0) kernel(from)(geometry, as_contiguous(from), out);
      return out;
    };
  };
  return apply_linear(x, {through(forward, sizes), through(backward, x.sizes())});
}

/// `image`: of two dimensions, where PyTorch takes sizes that are equal or doubled for factors of 1 and 2.
InterpolateAxis axis_of(std::int64_t in, std::int64_t out, const InterpolateOptions& options, bool image) {
  InterpolateAxis axis{.in = in, .out = out, .corners = options.align_corners};
  axis.nearest = options.mode == InterpolateMode::nearest;
  axis.cubic = options.mode == InterpolateMode::bicubic;
  if (axis.corners && !axis.nearest)
    axis.scale = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0.0;
  else
    axis.scale = options.scale_factor > 0.0 && !options.recompute_scale_factor
                     ? 1.0 / options.scale_factor
                     : static_cast<double>(in) / static_cast<double>(out);
  if (axis.nearest && image && (out == in || out == 2 * in))
    axis.scale = static_cast<double>(in) / static_cast<double>(out);
  if (out == in && !axis.nearest && !axis.cubic && !axis.corners) axis.scale = 1.0;  // copied, whatever the factor
  return axis;
}

std::int64_t size_of(std::int64_t in, std::int64_t asked, double factor) {
  if (!(factor > 0.0)) return asked;
  const double size = std::floor(static_cast<double>(in) * factor);
  LOCKSTEP_CHECK(size < 0x1p53,
                 "[interpolate] expected a scale_factor by which {} elements become less than 2^53, found {}", in,
                 factor);
  return static_cast<std::int64_t>(size);
}

bool fits(InterpolateMode mode, int dim) {
  switch (mode) {
    case InterpolateMode::nearest:
    case InterpolateMode::area:
      return dim >= 3 && dim <= 5;
    case InterpolateMode::linear:
      return dim == 3;
    case InterpolateMode::trilinear:
      return dim == 5;
    default:
      return dim == 4;
  }
}

/// The sizes of the result beyond those of samples and channels.
Shape result_sizes(const Tensor& x, const InterpolateOptions& options) {
  const std::int64_t asked[] = {options.volume_size.d, x.dim() == 5 ? options.volume_size.h : options.size.h,
                                x.dim() == 5 ? options.volume_size.w : options.size.w};
  Shape sizes;
  for (int d = 2; d < x.dim(); ++d)
    sizes.push_back(size_of(x.sizes()[d], asked[d - x.dim() + 3], options.scale_factor));
  return sizes;
}

Tensor by_area(const Tensor& x, const Shape& sizes) {
  if (x.dim() == 3) return adaptive_avg_pool1d(x, sizes[0]);
  if (x.dim() == 4) return adaptive_avg_pool2d(x, {sizes[0], sizes[1]});
  return adaptive_avg_pool3d(x, {sizes[0], sizes[1], sizes[2]});
}

/// The half types are rounded once, at the end.
Tensor axis_by_axis(const Tensor& x, const Shape& sizes, const InterpolateOptions& options) {
  Tensor out = element_size(x.dtype()) == 2 ? x.to(kFloat32) : x;
  for (int d = x.dim() - 1; d >= 2; --d) {
    ResampleGeometry geometry{.axis = axis_of(x.sizes()[d], sizes[d - 2], options, false)};
    for (int other = 0; other < x.dim(); ++other)
      if (other != d) (other < d ? geometry.outer : geometry.inner) *= out.sizes()[other];
    Shape to = out.sizes();
    to[d] = geometry.axis.out;
    out = resized(out, to, geometry, resample_kernel, resample_backward_kernel);
  }
  return out.to(x.dtype());
}

}  // namespace

Tensor interpolate(const Tensor& x, const InterpolateOptions& options) {
  const bool nearest = options.mode == InterpolateMode::nearest;
  if (x.defined() && x.dtype() == kUInt8 && nearest)  // float32 holds every value
    return interpolate(x.to(kFloat32), options).to(kUInt8);
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point(), "[interpolate] expected a floating-point tensor");
  LOCKSTEP_CHECK(!options.align_corners || (!nearest && options.mode != InterpolateMode::area),
                 "[interpolate] align_corners is not for nearest and area");
  LOCKSTEP_CHECK(fits(options.mode, x.dim()),
                 "[interpolate] expected images [n, c, h, w] (nearest, bilinear, bicubic or area), rows [n, c, w] "
                 "(nearest, linear or area) or volumes [n, c, d, h, w] (nearest, trilinear or area), found {}",
                 to_string(x.sizes()));
  const bool sized = x.dim() == 5 ? options.volume_size != Size3d(0) : options.size != Size2d(0);
  LOCKSTEP_CHECK(sized != (options.scale_factor > 0.0) && options.scale_factor >= 0.0,
                 "[interpolate] expected either a size or a positive scale_factor; the size of volumes is volume_size");
  if (x.dim() == 5 || options.mode == InterpolateMode::bicubic || options.mode == InterpolateMode::area) {
    const Shape sizes = result_sizes(x, options);
    for (int d = 2; d < x.dim(); ++d)
      LOCKSTEP_CHECK(x.sizes()[d] > 0 && sizes[d - 2] > 0, "[interpolate] {} cannot become {}", to_string(x.sizes()),
                     to_string(sizes));
    return options.mode == InterpolateMode::area ? by_area(x, sizes) : axis_by_axis(x, sizes, options);
  }
  const bool rows = x.dim() == 3;
  const std::int64_t h = rows ? 1 : x.size(-2), w = x.size(-1);
  InterpolateGeometry g;
  g.planes = h * w == 0 ? 0 : x.numel() / (h * w);
  g.rows = rows ? InterpolateAxis{.in = 1, .out = 1, .nearest = true}
                : axis_of(h, size_of(h, options.size.h, options.scale_factor), options, true);
  g.columns = axis_of(w, size_of(w, options.size.w, options.scale_factor), options, !rows);
  LOCKSTEP_CHECK(h > 0 && w > 0 && g.rows.out > 0 && g.columns.out > 0,
                 "[interpolate] images of {} cannot become {}x{}", to_string(x.sizes()), g.rows.out, g.columns.out);
  Shape sizes = x.sizes();
  if (!rows) sizes[2] = g.rows.out;
  sizes[x.dim() - 1] = g.columns.out;
  return resized(x, sizes, g, forward_kernel, backward_kernel);
}

}  // namespace lockstep
