#pragma once

// What is done to a tile's sums; see micro_kernel_body.h, which includes this after the description of a vector.

#include "lockstep/core/cpu/gemm/micro_kernel.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// The end of a tile, from sums in memory: [rows][vectors][kLanes]. The tile is `column` columns behind tile.out.
template <typename V>
void finish(const Tile<typename V::T>& tile, const typename V::Vector* sums, int rows, int vectors,
            std::int64_t column) {
  using T = typename V::T;
  using Vector = typename V::Vector;
  const Vector alpha = V::broadcast(&tile.alpha), beta = V::broadcast(&tile.beta);
  for (int v = 0; v < vectors; ++v) {
    const std::int64_t at = v * V::kLanes;
    const std::int64_t lanes = tile.columns - at < V::kLanes ? tile.columns - at : V::kLanes;
    const Vector bias = tile.bias ? V::load_first(tile.bias + column + at, lanes) : V::zero();
    for (int i = 0; i < rows; ++i) {
      T* const out = tile.out + i * tile.out_stride + column + at;
      Vector value = sums[i * vectors + v];
      if (tile.alpha != T(1)) value = V::multiply(alpha, value);
      if (tile.beta != T(0)) {
        const Vector old = V::load_first(out, lanes);
        value = V::add(tile.beta == T(1) ? old : V::multiply(beta, old), value);
      }
      if (tile.bias) value = V::add(value, bias);
      if (tile.row_bias) value = V::add(value, V::broadcast(tile.row_bias + i));
      if (tile.relu) value = V::positive(value);
      V::store_first(out, value, lanes);
    }
  }
}

}  // namespace
}  // namespace lockstep::cpu::gemm_detail
