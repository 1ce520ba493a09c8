#include <algorithm>
#include <vector>

#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

// Calls f(static_cast<P*>(nullptr)) with the element type of `positions`.
template <typename F>
void dispatch_positions(const Tensor& positions, F&& f) {
  if (!positions.defined() || positions.dtype() == kUInt8)
    f.template operator()<std::uint8_t>();
  else
    f.template operator()<std::int32_t>();
}

}  // namespace

void max_pool2d_forward_reference(const Pool2dGeometry& g, const Tensor& x, const Tensor& out,
                                  const Tensor& positions) {
  dispatch_numeric(x.dtype(), "max_pool2d", [&]<typename T>() {
    dispatch_positions(positions, [&]<typename P>() {
      const T* in = x.data<T>();
      T* maxima = out.data<T>();
      P* where = positions.defined() ? positions.data<P>() : nullptr;
      parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t index = begin * g.oh * g.ow; index < end * g.oh * g.ow; ++index) {
          const T* image = in + index / (g.oh * g.ow) * g.h * g.w;
          const std::int64_t top = index / g.ow % g.oh * g.stride.h - g.padding.h;
          const std::int64_t left = index % g.ow * g.stride.w - g.padding.w;
          compute_t<T> best = 0;
          std::int64_t best_position = -1;
          for (std::int64_t ky = 0; ky < g.kernel.h; ++ky) {
            const std::int64_t iy = top + ky * g.dilation.h;
            if (iy < 0 || iy >= g.h) continue;
            for (std::int64_t kx = 0; kx < g.kernel.w; ++kx) {
              const std::int64_t ix = left + kx * g.dilation.w;
              if (ix < 0 || ix >= g.w) continue;
              const auto value = static_cast<compute_t<T>>(image[iy * g.w + ix]);
              if (best_position >= 0 && !(value > best) && value == value) continue;
              best = value;
              best_position = ky * g.kernel.w + kx;
            }
          }
          // A window of a dilated kernel may have all its taps outside.
          maxima[index] = static_cast<T>(best_position < 0 ? kNothing<compute_t<T>> : best);
          if (where) where[index] = static_cast<P>(std::max<std::int64_t>(best_position, 0));
        }
      });
    });
  });
}

void max_pool2d_backward_reference(const Pool2dGeometry& g, const Tensor& grad, const Tensor& positions,
                                   const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "max_pool2d", [&]<typename T>() {
    dispatch_positions(positions, [&]<typename P>() {
      using C = compute_t<T>;
      const T* d = grad.data<T>();
      const P* where = positions.data<P>();
      parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
        std::vector<C> image(static_cast<std::size_t>(g.h * g.w));
        for (std::int64_t plane = begin; plane < end; ++plane) {
          std::fill(image.begin(), image.end(), C(0));
          for (std::int64_t i = 0; i < g.oh * g.ow; ++i) {
            const std::int64_t index = plane * g.oh * g.ow + i, position = where[index];
            const std::int64_t iy = i / g.ow * g.stride.h - g.padding.h + position / g.kernel.w * g.dilation.h;
            const std::int64_t ix = i % g.ow * g.stride.w - g.padding.w + position % g.kernel.w * g.dilation.w;
            if (iy >= 0 && iy < g.h && ix >= 0 && ix < g.w)
              image[static_cast<std::size_t>(iy * g.w + ix)] += static_cast<C>(d[index]);
          }
          T* to = x_grad.data<T>() + plane * g.h * g.w;
          for (std::size_t i = 0; i < image.size(); ++i) to[i] = static_cast<T>(image[i]);
        }
      });
    });
  });
}

}  // namespace lockstep
