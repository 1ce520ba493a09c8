#include <utility>
#include <vector>

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

// Calls tap(ky, kx, y, x) for the taps of output (oy, ox) that lie inside the image, and outside(ky, kx) for the
// others.
template <typename Tap, typename Outside>
void for_each_tap(const Conv2dGeometry& g, std::int64_t oy, std::int64_t ox, Tap&& tap, Outside&& outside) {
  for (std::int64_t ky = 0; ky < g.kh; ++ky) {
    const std::int64_t y = oy * g.stride.h - g.padding.h + ky * g.dilation.h;
    for (std::int64_t kx = 0; kx < g.kw; ++kx) {
      const std::int64_t x = ox * g.stride.w - g.padding.w + kx * g.dilation.w;
      if (y >= 0 && y < g.h && x >= 0 && x < g.w)
        tap(ky, kx, y, x);
      else
        outside(ky, kx);
    }
  }
}
template <typename Tap>
void for_each_tap(const Conv2dGeometry& g, std::int64_t oy, std::int64_t ox, Tap&& tap) {
  for_each_tap(g, oy, ox, std::forward<Tap>(tap), [](std::int64_t, std::int64_t) {});
}

std::int64_t input_index(const Conv2dGeometry& g, std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
  return ((n * g.in + c) * g.h + y) * g.w + x;
}
std::int64_t output_index(const Conv2dGeometry& g, std::int64_t n, std::int64_t c, std::int64_t y, std::int64_t x) {
  return ((n * g.out + c) * g.oh + y) * g.ow + x;
}
std::int64_t weight_index(const Conv2dGeometry& g, std::int64_t o, std::int64_t c, std::int64_t ky, std::int64_t kx) {
  return ((o * g.group_in() + c) * g.kh + ky) * g.kw + kx;
}

}  // namespace

void conv2d_forward_reference(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const Tensor& out, bool relu) {
  dispatch_floating(x.dtype(), "conv2d", [&]<typename T>() {
    using C = compute_t<T>;
    const T *in = x.data<T>(), *w = weight.data<T>();
    parallel_for(g.n * g.out, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t plane = begin; plane < end; ++plane) {
        const std::int64_t n = plane / g.out, o = plane % g.out, first = o / g.group_out() * g.group_in();
        for (std::int64_t oy = 0; oy < g.oh; ++oy) {
          for (std::int64_t ox = 0; ox < g.ow; ++ox) {
            C sum = bias.defined() ? static_cast<C>(bias.data<T>()[o]) : C(0);
            for (std::int64_t c = 0; c < g.group_in(); ++c)
              for_each_tap(g, oy, ox, [&](std::int64_t ky, std::int64_t kx, std::int64_t iy, std::int64_t ix) {
                sum += static_cast<C>(in[input_index(g, n, first + c, iy, ix)]) *
                       static_cast<C>(w[weight_index(g, o, c, ky, kx)]);
              });
            if (relu && sum < C(0)) sum = 0;
            out.data<T>()[output_index(g, n, o, oy, ox)] = static_cast<T>(sum);
          }
        }
      }
    });
  });
}

void conv2d_backward_data_reference(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight,
                                    const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "conv2d", [&]<typename T>() {
    using C = compute_t<T>;
    const T *d = grad.data<T>(), *w = weight.data<T>();
    parallel_for(g.n * g.in, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> plane(static_cast<std::size_t>(g.h * g.w));
      for (std::int64_t index = begin; index < end; ++index) {
        const std::int64_t n = index / g.in, c = index % g.in % g.group_in(), group = index % g.in / g.group_in();
        plane.assign(plane.size(), C(0));
        for (std::int64_t o = group * g.group_out(); o < (group + 1) * g.group_out(); ++o)
          for (std::int64_t oy = 0; oy < g.oh; ++oy)
            for (std::int64_t ox = 0; ox < g.ow; ++ox) {
              const C value = static_cast<C>(d[output_index(g, n, o, oy, ox)]);
              for_each_tap(g, oy, ox, [&](std::int64_t ky, std::int64_t kx, std::int64_t iy, std::int64_t ix) {
                plane[static_cast<std::size_t>(iy * g.w + ix)] +=
                    value * static_cast<C>(w[weight_index(g, o, c, ky, kx)]);
              });
            }
        for (std::int64_t i = 0; i < g.h * g.w; ++i)
          x_grad.data<T>()[index * g.h * g.w + i] = static_cast<T>(plane[static_cast<std::size_t>(i)]);
      }
    });
  });
}

void conv2d_backward_weight_reference(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x,
                                      const Tensor& weight_grad, const Tensor& bias_grad) {
  dispatch_floating(grad.dtype(), "conv2d", [&]<typename T>() {
    using C = compute_t<T>;
    const T *d = grad.data<T>(), *in = x.data<T>();
    parallel_for(g.out, 1, [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> kernel(static_cast<std::size_t>(g.kh * g.kw));
      for (std::int64_t o = begin; o < end; ++o) {
        const std::int64_t first = o / g.group_out() * g.group_in();
        for (std::int64_t c = 0; c < g.group_in(); ++c) {
          kernel.assign(kernel.size(), C(0));
          for (std::int64_t n = 0; n < g.n; ++n)
            for (std::int64_t oy = 0; oy < g.oh; ++oy)
              for (std::int64_t ox = 0; ox < g.ow; ++ox) {
                const C value = static_cast<C>(d[output_index(g, n, o, oy, ox)]);
                const auto at = [&](std::int64_t ky, std::int64_t kx) -> C& {
                  return kernel[static_cast<std::size_t>(ky * g.kw + kx)];
                };
                for_each_tap(
                    g, oy, ox,
                    [&](std::int64_t ky, std::int64_t kx, std::int64_t iy, std::int64_t ix) {
                      at(ky, kx) += value * static_cast<C>(in[input_index(g, n, first + c, iy, ix)]);
                    },
                    // The padding's zeros count here, as in the products of matrices: they make infinity a NaN.
                    [&](std::int64_t ky, std::int64_t kx) { at(ky, kx) += value * C(0); });
              }
          for (std::int64_t i = 0; i < g.kh * g.kw; ++i)
            weight_grad.data<T>()[weight_index(g, o, c, 0, 0) + i] =
                static_cast<T>(kernel[static_cast<std::size_t>(i)]);
        }
        if (bias_grad.defined()) {
          C sum = 0;
          for (std::int64_t n = 0; n < g.n; ++n)
            for (std::int64_t i = 0; i < g.oh * g.ow; ++i) sum += static_cast<C>(d[output_index(g, n, o, 0, 0) + i]);
          bias_grad.data<T>()[o] = static_cast<T>(sum);
        }
      }
    });
  });
}

}  // namespace lockstep
