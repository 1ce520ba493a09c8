#include <vector>

#include "lockstep/autograd/ops/pool2d/adaptive_avg_pool2d_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

struct Window {
  std::int64_t begin, end;
};

Window window(std::int64_t index, std::int64_t out, std::int64_t size) {
  return {index * size / out, ((index + 1) * size + out - 1) / out};
}

// Calls visit(output index within the plane, rows, columns) for each window.
template <typename Visit>
void for_each_window(const Pool2dGeometry& g, Visit&& visit) {
  for (std::int64_t oy = 0; oy < g.oh; ++oy)
    for (std::int64_t ox = 0; ox < g.ow; ++ox) visit(oy * g.ow + ox, window(oy, g.oh, g.h), window(ox, g.ow, g.w));
}

std::int64_t area(const Window& rows, const Window& columns) {
  return (rows.end - rows.begin) * (columns.end - columns.begin);
}

/// Averages of kPlanes neighbouring planes. A window is added up in order, each addition waiting for the one before;
/// several planes together keep the processor busy meanwhile.
template <int kPlanes, typename T>
void average_planes(const Pool2dGeometry& g, const T* image, T* out) {
  using C = compute_t<T>;
  for_each_window(g, [&](std::int64_t index, const Window& rows, const Window& columns) {
    C sums[kPlanes] = {};
    for (std::int64_t y = rows.begin; y < rows.end; ++y)
      for (std::int64_t i = columns.begin; i < columns.end; ++i)
        for (int p = 0; p < kPlanes; ++p) sums[p] += static_cast<C>(image[p * g.h * g.w + y * g.w + i]);
    for (int p = 0; p < kPlanes; ++p)
      out[p * g.oh * g.ow + index] = static_cast<T>(sums[p] / static_cast<C>(area(rows, columns)));
  });
}

}  // namespace

void adaptive_avg_pool2d_forward_cpu(const Pool2dGeometry& g, const Tensor& x, const Tensor& out) {
  dispatch_floating(x.dtype(), "adaptive_avg_pool2d", [&]<typename T>() {
    const T* images = x.data<T>();
    T* averages = out.data<T>();
    parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t plane, std::int64_t end) {
      constexpr int kTogether = 8;
      for (; plane + kTogether <= end; plane += kTogether)
        average_planes<kTogether>(g, images + plane * g.h * g.w, averages + plane * g.oh * g.ow);
      for (; plane < end; ++plane) average_planes<1>(g, images + plane * g.h * g.w, averages + plane * g.oh * g.ow);
    });
  });
}

void adaptive_avg_pool2d_backward_cpu(const Pool2dGeometry& g, const Tensor& grad, const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "adaptive_avg_pool2d", [&]<typename T>() {
    using C = compute_t<T>;
    parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> image(static_cast<std::size_t>(g.h * g.w));
      for (std::int64_t plane = begin; plane < end; ++plane) {
        std::fill(image.begin(), image.end(), C(0));
        for_each_window(g, [&](std::int64_t index, const Window& rows, const Window& columns) {
          const C share =
              static_cast<C>(grad.data<T>()[plane * g.oh * g.ow + index]) / static_cast<C>(area(rows, columns));
          for (std::int64_t y = rows.begin; y < rows.end; ++y)
            for (std::int64_t i = columns.begin; i < columns.end; ++i)
              image[static_cast<std::size_t>(y * g.w + i)] += share;
        });
        T* to = x_grad.data<T>() + plane * g.h * g.w;
        for (std::size_t i = 0; i < image.size(); ++i) to[i] = static_cast<T>(image[i]);
      }
    });
  });
}

}  // namespace lockstep
