#include <algorithm>
#include <vector>

#include "lockstep/autograd/ops/interpolate/interpolate_taps.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep {
namespace {

std::vector<ManyTaps> all_taps(const InterpolateAxis& axis) {
  std::vector<ManyTaps> taps;
  for (std::int64_t i = 0; i < axis.out; ++i) taps.push_back(many_taps_at(axis, i));
  return taps;
}

/// Row `to` of `inner` elements as a sum of kCount rows, in their order.
template <int kCount, typename T>
void weigh(const T* from, const ManyTaps& taps, std::int64_t inner, T* __restrict to) {
  using C = compute_t<T>;
  const T* rows[kCount];
  C weights[kCount];
  for (int k = 0; k < kCount; ++k) {
    rows[k] = from + taps.at[k] * inner;
    weights[k] = static_cast<C>(taps.weight[k]);
  }
  for (std::int64_t j = 0; j < inner; ++j) {
    C sum = weights[0] * static_cast<C>(rows[0][j]);
    for (int k = 1; k < kCount; ++k) sum += weights[k] * static_cast<C>(rows[k][j]);
    to[j] = static_cast<T>(sum);
  }
}

}  // namespace

void resample_cpu(const ResampleGeometry& g, const Tensor& x, const Tensor& out) {
  const std::vector<ManyTaps> taps = all_taps(g.axis);
  dispatch_floating(x.dtype(), "interpolate", [&]<typename T>() {
    const T* from = x.data<T>();
    T* to = out.data<T>();
    parallel_for(g.outer * g.axis.out, std::max<std::int64_t>(1, cpu::kElementBlock / g.inner),
                 [&](std::int64_t begin, std::int64_t end) {
                   for (std::int64_t row = begin; row < end; ++row) {
                     const ManyTaps& t = taps[static_cast<std::size_t>(row % g.axis.out)];
                     const T* const source = from + row / g.axis.out * g.axis.in * g.inner;
                     T* const target = to + row * g.inner;
                     if (t.count == 1)
                       std::copy_n(source + t.at[0] * g.inner, g.inner, target);
                     else if (t.count == 2)
                       weigh<2>(source, t, g.inner, target);
                     else
                       weigh<4>(source, t, g.inner, target);
                   }
                 });
  });
}

void resample_backward_cpu(const ResampleGeometry& g, const Tensor& grad, const Tensor& x_grad) {
  const std::vector<ManyTaps> taps = all_taps(g.axis);
  const std::int64_t size = g.axis.in * g.inner;
  dispatch_floating(grad.dtype(), "interpolate backward", [&]<typename T>() {
    using C = compute_t<T>;
    const T* from = grad.data<T>();
    T* to = x_grad.data<T>();
    parallel_for(g.outer, std::max<std::int64_t>(1, cpu::kElementBlock / (g.axis.out * g.inner)),
                 [&](std::int64_t begin, std::int64_t end) {
                   std::vector<C> sums(static_cast<std::size_t>(size));
                   for (std::int64_t block = begin; block < end; ++block) {
                     std::fill(sums.begin(), sums.end(), C(0));
                     for (std::int64_t i = 0; i < g.axis.out; ++i) {
                       const ManyTaps& t = taps[static_cast<std::size_t>(i)];
                       const T* const row = from + (block * g.axis.out + i) * g.inner;
                       for (int k = 0; k < t.count; ++k) {
                         C* const sum = sums.data() + t.at[k] * g.inner;
                         const C weight = static_cast<C>(t.weight[k]);
                         for (std::int64_t j = 0; j < g.inner; ++j) sum[j] += weight * static_cast<C>(row[j]);
                       }
                     }
                     for (std::int64_t j = 0; j < size; ++j)
                       to[block * size + j] = static_cast<T>(sums[static_cast<std::size_t>(j)]);
                   }
                 });
  });
}

}  // namespace lockstep
