#pragma once

// The tiles of Correlation, for the .cpp files that compile them: each for one instruction set, see Note
// [One instruction set a file] in core/cpu/gemm/micro_kernel_body.h. A tile of O output channels x V vectors of
// positions keeps its sums in registers, so that O + V loads feed O * V fused multiply-adds: 4 x 3 where there are 16
// registers, 4 x 6 where there are 32.

#include "lockstep/autograd/ops/conv2d/conv2d_direct_tiles.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::conv2d_direct {
namespace {

// Vectors of eight positions of a row; others have the same members. `pitch`: from one row to the next.
struct Eight {
  using Vec = cpu::Vec8;
  static constexpr int kLanes = 8;
  [[gnu::always_inline]] static Vec load(const float* p, std::int64_t /*pitch*/) { return cpu::load8(p); }
  [[gnu::always_inline]] static void store(float* p, Vec v, std::int64_t /*pitch*/) { cpu::store8(p, v); }
  [[gnu::always_inline]] static Vec broadcast(float value) { return cpu::broadcast8(value); }
  [[gnu::always_inline]] static Vec fused(Vec a, Vec b, Vec c) { return cpu::fma8(a, b, c); }
};

// KW is the kernel's width, or 0 if known only at run time.
template <typename W, int O, int V, int KW>
[[gnu::noinline]] void tile(const TileArguments& a, const std::int32_t* in_offset, const std::int32_t* out_offset) {
  using Vec = typename W::Vec;
  // Loops over sums are unrolled, so that these stay in registers all along.
  Vec sum[O][V];
#pragma GCC unroll 4
  for (int o = 0; o < O; ++o) {
    const Vec first = W::broadcast(a.bias ? a.bias[o] : 0.0f);
#pragma GCC unroll 6
    for (int v = 0; v < V; ++v) sum[o][v] = first;
  }
  const float* in[V];
  for (int v = 0; v < V; ++v) in[v] = a.image + in_offset[v];
  const float* w = a.weights;
  const std::int64_t kw = KW ? KW : a.kw;
  for (std::int64_t c = 0; c < a.channels; ++c) {
    for (std::int64_t ky = 0; ky < a.kh; ++ky) {
      const std::int64_t row = c * a.plane + ky * a.pitch;
      for (std::int64_t kx = 0; kx < kw; ++kx, w += O) {
        Vec x[V];
#pragma GCC unroll 6
        for (int v = 0; v < V; ++v) {
          x[v] = W::load(in[v] + row + kx, a.pitch);
          if constexpr (O > 1) x[v] = cpu::keep(x[v]);
        }
#pragma GCC unroll 4
        for (int o = 0; o < O; ++o) {
          const Vec factor = W::broadcast(w[o]);
#pragma GCC unroll 6
          for (int v = 0; v < V; ++v) sum[o][v] = W::fused(factor, x[v], sum[o][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int o = 0; o < O; ++o)
#pragma GCC unroll 6
    for (int v = 0; v < V; ++v) {
      Vec value = sum[o][v];
      if (a.relu) value = value < Vec{} ? Vec{} : value;
      W::store(a.out + o * a.out_plane + out_offset[v], value, a.out_pitch);
    }
}

template <typename W, int KW, int O, int V>
constexpr void fill_row(Tile* row) {
  row[V - 1] = tile<W, O, V, KW>;
  if constexpr (V > 1) fill_row<W, KW, O, V - 1>(row);
}

template <typename W, int KW, int V>
constexpr void fill_width(Tile (*rows)[Tiles::kMaxVectors]) {
  fill_row<W, KW, 1, V>(rows[0]);
  fill_row<W, KW, 2, V>(rows[1]);
  fill_row<W, KW, 3, V>(rows[2]);
  fill_row<W, KW, 4, V>(rows[3]);
}

// Tiles of up to V vectors.
template <typename W, int V>
constexpr Tiles make_tiles() {
  Tiles all{W::kLanes, V};
  fill_width<W, 1, V>(all.tiles[0]);
  fill_width<W, 3, V>(all.tiles[1]);
  fill_width<W, 5, V>(all.tiles[2]);
  fill_width<W, 0, V>(all.tiles[3]);
  return all;
}

}  // namespace
}  // namespace lockstep::conv2d_direct
