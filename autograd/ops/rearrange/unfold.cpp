#include <algorithm>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

/// How windows lie in padded images.
struct Windows {
  std::int64_t h, w, count;  ///< of the padded image
  Tensor places;             ///< int64 [kh kw count]: places in a padded plane, tap by tap
};

Windows windows_of(Size2d size, Size2d kernel, const UnfoldOptions& o, Device device, const char* op) {
  LOCKSTEP_CHECK(kernel.h > 0 && kernel.w > 0 && o.stride.h > 0 && o.stride.w > 0 && o.dilation.h > 0 &&
                     o.dilation.w > 0 && o.padding.h >= 0 && o.padding.w >= 0,
                 "[{}] expected a kernel, stride and dilation of at least 1 and a padding of at least 0", op);
  constexpr std::int64_t kMost = std::int64_t{1} << 31;
  LOCKSTEP_CHECK(std::max({kernel.h, kernel.w, o.stride.h, o.stride.w, o.dilation.h, o.dilation.w, o.padding.h,
                           o.padding.w}) < kMost,
                 "[{}] expected a kernel, stride, dilation and padding under 2^31", op);
  Windows out{size.h + 2 * o.padding.h, size.w + 2 * o.padding.w, 0, {}};
  const std::int64_t down = out.h - o.dilation.h * (kernel.h - 1) - 1,
                     right = out.w - o.dilation.w * (kernel.w - 1) - 1;
  LOCKSTEP_CHECK(down >= 0 && right >= 0, "[{}] a window of {} x {} does not fit into a padded image of {} x {}", op,
                 o.dilation.h * (kernel.h - 1) + 1, o.dilation.w * (kernel.w - 1) + 1, out.h, out.w);
  const std::int64_t rows = down / o.stride.h + 1, columns = right / o.stride.w + 1;
  out.count = rows * columns;
  const TensorOptions whole{.dtype = kInt64, .device = device};
  const auto axis = [&](std::int64_t taps, std::int64_t dilation, std::int64_t steps, std::int64_t stride) {
    return (arange(taps, whole) * dilation).unsqueeze(1) + arange(steps, whole) * stride;  // [taps, steps]
  };
  const Tensor y = axis(kernel.h, o.dilation.h, rows, o.stride.h),
               x = axis(kernel.w, o.dilation.w, columns, o.stride.w);
  out.places = (y.view({kernel.h, 1, rows, 1}) * out.w + x.view({1, kernel.w, 1, columns})).reshape({-1});
  return out;
}

}  // namespace

Tensor unfold(const Tensor& x, Size2d kernel, const UnfoldOptions& options) {
  if (x.defined() && x.dim() == 3) return unfold(x.unsqueeze(0), kernel, options).squeeze(0);  // one image
  LOCKSTEP_CHECK(x.defined() && x.dim() == 4, "[unfold] expected images [n, c, h, w] or [c, h, w], found {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  const std::int64_t n = x.size(0), c = x.size(1);
  const Windows windows = windows_of({x.size(2), x.size(3)}, kernel, options, x.device(), "unfold");
  const Size2d p = options.padding;
  const Tensor planes = pad(x, {p.w, p.w, p.h, p.h}).reshape({n * c, windows.h * windows.w});
  return planes.index_select(1, windows.places).view({n, c * kernel.h * kernel.w, windows.count});
}

Tensor fold(const Tensor& columns, Size2d size, Size2d kernel, const UnfoldOptions& options) {
  if (columns.defined() && columns.dim() == 2) return fold(columns.unsqueeze(0), size, kernel, options).squeeze(0);
  const Windows windows = windows_of(size, kernel, options, columns.defined() ? columns.device() : Device(), "fold");
  const std::int64_t taps = kernel.h * kernel.w;
  LOCKSTEP_CHECK(
      columns.defined() && columns.dim() == 3 && columns.size(1) % taps == 0 && columns.size(2) == windows.count,
      "[fold] expected columns [n, c * {}, {}], or without n, found {}", taps, windows.count,
      columns.defined() ? to_string(columns.sizes()) : "an undefined tensor");
  const std::int64_t n = columns.size(0), c = columns.size(1) / taps;
  const Tensor planes = zeros({n * c, windows.h * windows.w}, options_of(columns))
                            .index_add(1, windows.places, columns.reshape({n * c, taps * windows.count}));
  const Size2d p = options.padding;
  return pad(planes.view({n, c, windows.h, windows.w}), {-p.w, -p.w, -p.h, -p.h});
}

}  // namespace lockstep
