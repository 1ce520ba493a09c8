#include <algorithm>
#include <vector>

#include "lockstep/autograd/ops/interpolate/interpolate_taps.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep {
namespace {

std::vector<Taps> all_taps(const InterpolateAxis& axis) {
  std::vector<Taps> taps;
  for (std::int64_t i = 0; i < axis.out; ++i) taps.push_back(taps_at(axis, i));
  return taps;
}

}  // namespace

void interpolate_cpu(const InterpolateGeometry& g, const Tensor& x, const Tensor& out) {
  const std::vector<Taps> down = all_taps(g.rows), right = all_taps(g.columns);
  dispatch_floating(x.dtype(), "interpolate", [&]<typename T>() {
    using C = compute_t<T>;
    const T* from = x.data<T>();
    T* to = out.data<T>();
    const std::int64_t w = g.columns.in, ow = g.columns.out, oh = g.rows.out;
    parallel_for(
        g.planes * oh, std::max<std::int64_t>(1, cpu::kElementBlock / ow), [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t row = begin; row < end; ++row) {
            const Taps y = down[static_cast<std::size_t>(row % oh)];
            const T* plane = from + row / oh * g.rows.in * w;
            const T *top = plane + y.low * w, *bottom = plane + y.high * w;
            const C lower = static_cast<C>(y.high_weight), upper = C(1) - lower;
            T* line = to + row * ow;
            if (g.columns.nearest) {
              for (std::int64_t j = 0; j < ow; ++j) line[j] = top[right[static_cast<std::size_t>(j)].low];
              continue;
            }
            for (std::int64_t j = 0; j < ow; ++j) {
              const Taps& t = right[static_cast<std::size_t>(j)];
              const C b = static_cast<C>(t.high_weight), a = C(1) - b;
              line[j] =
                  static_cast<T>(upper * (a * static_cast<C>(top[t.low]) + b * static_cast<C>(top[t.high])) +
                                 lower * (a * static_cast<C>(bottom[t.low]) + b * static_cast<C>(bottom[t.high])));
            }
          }
        });
  });
}

void interpolate_backward_cpu(const InterpolateGeometry& g, const Tensor& grad, const Tensor& x_grad) {
  const std::vector<Taps> down = all_taps(g.rows), right = all_taps(g.columns);
  dispatch_floating(grad.dtype(), "interpolate backward", [&]<typename T>() {
    using C = compute_t<T>;
    const T* from = grad.data<T>();
    T* to = x_grad.data<T>();
    const std::int64_t w = g.columns.in, size = g.rows.in * w, ow = g.columns.out, oh = g.rows.out;
    parallel_for(g.planes, std::max<std::int64_t>(1, cpu::kElementBlock / (ow * oh)),
                 [&](std::int64_t begin, std::int64_t end) {
                   std::vector<C> sums(static_cast<std::size_t>(size));
                   for (std::int64_t plane = begin; plane < end; ++plane) {
                     std::fill(sums.begin(), sums.end(), C(0));
                     for (std::int64_t i = 0; i < oh; ++i) {
                       const Taps y = down[static_cast<std::size_t>(i)];
                       C *top = sums.data() + y.low * w, *bottom = sums.data() + y.high * w;
                       const C lower = static_cast<C>(y.high_weight), upper = C(1) - lower;
                       const T* line = from + (plane * oh + i) * ow;
                       for (std::int64_t j = 0; j < ow; ++j) {
                         const Taps& t = right[static_cast<std::size_t>(j)];
                         const C value = static_cast<C>(line[j]);
                         if (g.columns.nearest) {
                           top[t.low] += value;
                           continue;
                         }
                         const C b = static_cast<C>(t.high_weight), a = C(1) - b;
                         top[t.low] += upper * a * value;
                         top[t.high] += upper * b * value;
                         bottom[t.low] += lower * a * value;
                         bottom[t.high] += lower * b * value;
                       }
                     }
                     for (std::int64_t k = 0; k < size; ++k)
                       to[plane * size + k] = static_cast<T>(sums[static_cast<std::size_t>(k)]);
                   }
                 });
  });
}

}  // namespace lockstep
