// For the build's own instruction set, with vectors of eight. A sweep keeps up to 4 output channels x 3 taps in
// registers, so that 7 loads feed 12 fused multiply-adds.

#include "lockstep/autograd/ops/conv2d/conv2d_direct_sums.h"

#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/cpu/wide_functions.h"

namespace lockstep::conv2d_direct {
namespace {

using cpu::broadcast8;
using cpu::fma8;
using cpu::keep;
using cpu::kLanes;
using cpu::load8;
using cpu::store8;
using cpu::sum8;
using Vec = cpu::Vec8;

template <int C, int V>
[[gnu::noinline]] void scatter(const ScatterArguments& a, float* const* to) {
  Vec sum[C][V];
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) sum[c][v] = Vec{};
  const float *d = a.grad, *w = a.weights;
  for (std::int64_t o = 0; o < a.out; ++o, d += a.grad_plane, w += C) {
    Vec g[V];
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) g[v] = load8(d + v * kLanes);
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const Vec factor = broadcast8(w[c]);
#pragma GCC unroll 3
      for (int v = 0; v < V; ++v) sum[c][v] = fma8(factor, g[v], sum[c][v]);
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 3
    for (int v = 0; v < V; ++v) {
      float* p = to[v] + c * a.plane;
      store8(p, load8(p) + sum[c][v]);
    }
}

template <int O, int K>
[[gnu::noinline]] void sweep(const SweepArguments& a) {
  Vec sum[O][K];
#pragma GCC unroll 4
  for (int o = 0; o < O; ++o)
#pragma GCC unroll 5
    for (int k = 0; k < K; ++k) sum[o][k] = Vec{};
  for (std::int64_t i = 0; i < a.count; ++i) {
    for (std::int64_t y = 0; y < a.rows; ++y) {
      const float* d = a.grad + i * a.grad_stride + y * a.grad_pitch;
      const float* x = a.image + i * a.image_stride + y * a.image_pitch;
      for (std::int64_t v = 0; v < a.row_vecs; ++v, d += kLanes, x += kLanes) {
        Vec g[O];
#pragma GCC unroll 4
        for (int o = 0; o < O; ++o) g[o] = load8(d + o * a.grad_plane);
#pragma GCC unroll 5
        for (int k = 0; k < K; ++k) {
          const Vec tap = keep(load8(x + k));
#pragma GCC unroll 4
          for (int o = 0; o < O; ++o) sum[o][k] = fma8(g[o], tap, sum[o][k]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int o = 0; o < O; ++o)
#pragma GCC unroll 5
    for (int k = 0; k < K; ++k) a.sums[o * a.sums_stride + k] += sum8(sum[o][k]);
}

template <int C>
constexpr void fill_scatters(Sums& sums) {
  sums.scatters[C - 1][0] = scatter<C, 1>;
  sums.scatters[C - 1][1] = scatter<C, 2>;
  sums.scatters[C - 1][2] = scatter<C, 3>;
  if constexpr (C > 1) fill_scatters<C - 1>(sums);
}
// Of up to O output channels.
template <int O, int K>
constexpr void fill_sweeps(Sums& sums) {
  sums.sweeps[O - 1][K - 1] = sweep<O, K>;
  if constexpr (O > 1) fill_sweeps<O - 1, K>(sums);
}
template <int K, int O>
constexpr void fill_taps(Sums& sums) {  // as many as 16 registers hold
  sums.outputs[K - 1] = O;
  fill_sweeps<O, K>(sums);
}

constexpr Sums make_sums() {
  Sums sums{.channels = 4};
  fill_scatters<4>(sums);
  fill_taps<1, 4>(sums);
  fill_taps<2, 4>(sums);
  fill_taps<3, 4>(sums);
  fill_taps<4, 3>(sums);
  fill_taps<5, 2>(sums);
  return sums;
}

}  // namespace

constexpr Sums kSums = make_sums();

const Sums& sums_in_use() {
#if defined(__x86_64__)
  if (cpu::has_wide_functions()) return kSumsAvx512;
#endif
  return kSums;
}

}  // namespace lockstep::conv2d_direct
