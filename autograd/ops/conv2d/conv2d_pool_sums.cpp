// For the build's own instruction set, with vectors of eight.

#include "lockstep/autograd/ops/conv2d/conv2d_pool_sums.h"

#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/cpu/wide_functions.h"

namespace lockstep::conv2d_pool {
namespace {

using cpu::broadcast8;
using cpu::fma8;
using cpu::kLanes;
using cpu::load8;
using cpu::store8;
using Vec = cpu::Vec8;
static_assert(kLanes == kSumLanes);

struct Kernels {
  template <int R, int V>
  [[gnu::noinline]] static void add_patches(const Entries& entries, const float* image, std::int64_t pitch, float* sums,
                                            std::int64_t sums_pitch) {
    constexpr int kChains = R * V <= kMostByTurns ? 2 : 1;  // enough independent sums to hide an addition's latency
    const auto [values, places, count] = entries;
    Vec sum[kChains][R][V];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 12
      for (int v = 0; v < V; ++v) {
        sum[0][r][v] = load8(sums + r * sums_pitch + v * kLanes);
        if constexpr (kChains == 2) sum[1][r][v] = Vec{};
      }
    std::int64_t i = 0;
    for (; i + kChains <= count; i += kChains)
#pragma GCC unroll 2
      for (int chain = 0; chain < kChains; ++chain) {
        const Vec value = broadcast8(values[i + chain]);
        const float* patch = image + places[i + chain];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 12
          for (int v = 0; v < V; ++v)
            sum[chain][r][v] = fma8(value, load8(patch + r * pitch + v * kLanes), sum[chain][r][v]);
      }
    if (i < count) {
      const Vec value = broadcast8(values[i]);
      const float* patch = image + places[i];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 12
        for (int v = 0; v < V; ++v) sum[0][r][v] = fma8(value, load8(patch + r * pitch + v * kLanes), sum[0][r][v]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 12
      for (int v = 0; v < V; ++v) {
        if constexpr (kChains == 2) sum[0][r][v] += sum[1][r][v];
        store8(sums + r * sums_pitch + v * kLanes, sum[0][r][v]);
      }
  }

  template <int V>
  [[gnu::noinline]] static void add_weights(const WeightArguments& a) {
    const auto [values, places, count] = a.entries;
    for (std::int64_t r = 0; r < a.rows; ++r) {
      float* to = a.to + r * a.pitch;
      const float* weights = a.weights + r * a.weights_pitch;
      Vec sum[V];
#pragma GCC unroll 12
      for (int v = 0; v < V; ++v) sum[v] = load8(to + v * kLanes);
      for (std::int64_t i = 0; i < count; ++i) {
        const Vec value = broadcast8(values[i]);
        const float* weight = weights + places[i];
#pragma GCC unroll 12
        for (int v = 0; v < V; ++v) sum[v] = fma8(value, load8(weight + v * kLanes), sum[v]);
      }
#pragma GCC unroll 12
      for (int v = 0; v < V; ++v) store8(to + v * kLanes, sum[v]);
    }
  }

  static constexpr int rows(int runs) {
    return rows_of_tile(runs);
  }
};

}  // namespace

constexpr SparseSums kSparseSums = make_sparse_sums<Kernels>(kLanes);

const SparseSums& sparse_sums_in_use() {
#if defined(__x86_64__)
  if (cpu::has_wide_functions()) return kSparseSumsAvx512;
#endif
  return kSparseSums;
}

}  // namespace lockstep::conv2d_pool
