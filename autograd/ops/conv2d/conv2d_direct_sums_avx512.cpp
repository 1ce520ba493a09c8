// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is: Note [One instruction set a file]
// in core/cpu/gemm/micro_kernel_body.h. A vector of sixteen holds two runs of eight, or the eight sums of two output
// channels: up to ten channels x 5 taps are 25 of 32 registers.

#include <immintrin.h>

#include "lockstep/autograd/ops/conv2d/conv2d_direct_sums.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::conv2d_direct {
namespace {

using cpu::kLanes;
using cpu::Vec8;

[[gnu::always_inline]] inline Vec8 half(__m512 v, int which) {
  return which == 0 ? _mm512_maskz_extractf32x8_ps(0xff, v, 0) : _mm512_maskz_extractf32x8_ps(0xff, v, 1);
}

// R runs. An odd one has half a vector.
template <int C, int R>
[[gnu::noinline]] void scatter(const ScatterArguments& a, float* const* to) {
  constexpr int V = (R + 1) / 2;
  constexpr __mmask16 kLast = R % 2 == 0 ? 0xffff : 0xff;
  __m512 sum[C][V];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) sum[c][v] = _mm512_setzero_ps();
  const float *d = a.grad, *w = a.weights;
  for (std::int64_t o = 0; o < a.out; ++o, d += a.grad_plane, w += C) {
    __m512 g[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) g[v] = _mm512_maskz_loadu_ps(v == V - 1 ? kLast : 0xffff, d + v * 2 * kLanes);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const __m512 factor = _mm512_set1_ps(w[c]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) sum[c][v] = _mm512_fmadd_ps(factor, g[v], sum[c][v]);
    }
  }
  const auto add = [](float* p, Vec8 values) { cpu::store8(p, cpu::load8(p) + values); };
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const __m512 both = sum[c][v];
      add(to[2 * v] + c * a.plane, half(both, 0));
      if (2 * v + 1 < R) add(to[2 * v + 1] + c * a.plane, half(both, 1));
    }
}

// P pairs of output channels. Of an odd number the last one fills both halves, and its sums are added once.
template <int P, int K>
[[gnu::noinline]] void sweep(const SweepArguments& a) {
  __m512 sum[P][K];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 5
    for (int k = 0; k < K; ++k) sum[p][k] = _mm512_setzero_ps();
  const std::int64_t second = a.channels % 2 == 0 ? a.grad_plane : 0;  // of the last pair
  for (std::int64_t i = 0; i < a.count; ++i) {
    for (std::int64_t y = 0; y < a.rows; ++y) {
      const float* d = a.grad + i * a.grad_stride + y * a.grad_pitch;
      const float* x = a.image + i * a.image_stride + y * a.image_pitch;
      for (std::int64_t v = 0; v < a.row_vecs; ++v, d += kLanes, x += kLanes) {
        __m512 g[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) {
          const float* first = d + 2 * p * a.grad_plane;
          g[p] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(first)),
                                    _mm256_loadu_ps(first + (p < P - 1 ? a.grad_plane : second)), 1);
        }
#pragma GCC unroll 5
        for (int k = 0; k < K; ++k) {
          const __m512 tap = _mm512_maskz_broadcast_f32x8(0xffff, _mm256_loadu_ps(x + k));
#pragma GCC unroll 8
          for (int p = 0; p < P; ++p) sum[p][k] = _mm512_fmadd_ps(g[p], tap, sum[p][k]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 5
    for (int k = 0; k < K; ++k) {
      const __m512 both = sum[p][k];
      float* const to = a.sums + 2 * p * a.sums_stride + k;
      *to += cpu::sum8(half(both, 0));
      if (2 * p + 1 < a.channels) to[a.sums_stride] += cpu::sum8(half(both, 1));
    }
}

template <int C, int R>
constexpr void fill_scatters(Sums& sums) {
  sums.scatters[C - 1][R - 1] = scatter<C, R>;
  if constexpr (R > 1)
    fill_scatters<C, R - 1>(sums);
  else if constexpr (C > 1)
    fill_scatters<C - 1, Sums::kMostRuns>(sums);
}
template <int K, int P>
constexpr void fill_sweeps(Sums& sums) {
  sums.sweeps[2 * P - 2][K - 1] = sums.sweeps[2 * P - 1][K - 1] = sweep<P, K>;
  if constexpr (P > 1) fill_sweeps<K, P - 1>(sums);
}
template <int K, int P>
constexpr void fill_taps(Sums& sums) {  // as many as 32 registers hold
  sums.outputs[K - 1] = 2 * P;
  fill_sweeps<K, P>(sums);
}

constexpr Sums make_sums() {
  Sums sums{.channels = Sums::kMostChannels};
  fill_scatters<Sums::kMostChannels, Sums::kMostRuns>(sums);
  fill_taps<1, 8>(sums);
  fill_taps<2, 8>(sums);
  fill_taps<3, 8>(sums);
  fill_taps<4, 6>(sums);
  fill_taps<5, 5>(sums);
  return sums;
}

}  // namespace

constexpr Sums kSumsAvx512 = make_sums();

}  // namespace lockstep::conv2d_direct
