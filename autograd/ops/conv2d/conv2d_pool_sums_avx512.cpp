// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is: Note [One instruction set a file]
// in core/cpu/gemm/micro_kernel_body.h. Two runs of eight are a vector of sixteen, an odd one has one of eight, and
// with 32 registers more rows of a patch share what is loaded for an entry.

#include <immintrin.h>

#include "lockstep/autograd/ops/conv2d/conv2d_pool_sums.h"

namespace lockstep::conv2d_pool {
namespace {

// V runs of eight.
template <int V>
struct Run {
  static constexpr int kPairs = V / 2, kRegisters = (V + 1) / 2;
  static constexpr bool kOdd = V % 2 != 0;
  __m512 pair[kPairs > 0 ? kPairs : 1];
  __m256 last;

  [[gnu::always_inline]] void load(const float* p) {
#pragma GCC unroll 6
    for (int v = 0; v < kPairs; ++v) pair[v] = _mm512_loadu_ps(p + 16 * v);
    if constexpr (kOdd) last = _mm256_loadu_ps(p + 16 * kPairs);
  }
  [[gnu::always_inline]] void clear() {
#pragma GCC unroll 6
    for (int v = 0; v < kPairs; ++v) pair[v] = _mm512_setzero_ps();
    if constexpr (kOdd) last = _mm256_setzero_ps();
  }
  [[gnu::always_inline]] void add_product(float factor, const float* p) {
    [[maybe_unused]] const __m512 value = _mm512_set1_ps(factor);
#pragma GCC unroll 6
    for (int v = 0; v < kPairs; ++v) pair[v] = _mm512_fmadd_ps(value, _mm512_loadu_ps(p + 16 * v), pair[v]);
    if constexpr (kOdd) last = _mm256_fmadd_ps(_mm256_set1_ps(factor), _mm256_loadu_ps(p + 16 * kPairs), last);
  }
  [[gnu::always_inline]] void add(const Run& other) {
#pragma GCC unroll 6
    for (int v = 0; v < kPairs; ++v) pair[v] = _mm512_add_ps(pair[v], other.pair[v]);
    if constexpr (kOdd) last = _mm256_add_ps(last, other.last);
  }
  [[gnu::always_inline]] void store(float* p) const {
#pragma GCC unroll 6
    for (int v = 0; v < kPairs; ++v) _mm512_storeu_ps(p + 16 * v, pair[v]);
    if constexpr (kOdd) _mm256_storeu_ps(p + 16 * kPairs, last);
  }
};

struct Kernels {
  template <int R, int V>
  [[gnu::noinline]] static void add_patches(const Entries& entries, const float* image, std::int64_t pitch, float* sums,
                                            std::int64_t sums_pitch) {
    constexpr int kChains = R * V <= kMostByTurns ? 2 : 1;
    const float* const values = entries.values;
    const std::int32_t* const places = entries.places;
    const std::int64_t count = entries.count;
    Run<V> sum[kChains][R];
#pragma GCC unroll 5
    for (int r = 0; r < R; ++r) {
      sum[0][r].load(sums + r * sums_pitch);
      if constexpr (kChains == 2) sum[1][r].clear();
    }
    std::int64_t i = 0;
    for (; i + kChains <= count; i += kChains)
#pragma GCC unroll 2
      for (int chain = 0; chain < kChains; ++chain) {
        const float value = values[i + chain];
        const float* patch = image + places[i + chain];
#pragma GCC unroll 5
        for (int r = 0; r < R; ++r) sum[chain][r].add_product(value, patch + r * pitch);
      }
    if (i < count) {
      const float value = values[i];
      const float* patch = image + places[i];
#pragma GCC unroll 5
      for (int r = 0; r < R; ++r) sum[0][r].add_product(value, patch + r * pitch);
    }
#pragma GCC unroll 5
    for (int r = 0; r < R; ++r) {
      if constexpr (kChains == 2) sum[0][r].add(sum[1][r]);
      sum[0][r].store(sums + r * sums_pitch);
    }
  }

  template <int V, int R>
  [[gnu::always_inline]] static inline void add_rows_of_weights(const WeightArguments& a, std::int64_t row) {
    const float* const values = a.entries.values;
    const std::int32_t* const places = a.entries.places;
    const std::int64_t count = a.entries.count, pitch = a.weights_pitch;
    const float* const weights = a.weights + row * pitch;
    float* const to = a.to + row * a.pitch;
    Run<V> sum[R];
#pragma GCC unroll 5
    for (int r = 0; r < R; ++r) sum[r].load(to + r * a.pitch);
    for (std::int64_t i = 0; i < count; ++i) {
      const float value = values[i];
      const float* weight = weights + places[i];
#pragma GCC unroll 5
      for (int r = 0; r < R; ++r) sum[r].add_product(value, weight + r * pitch);
    }
#pragma GCC unroll 5
    for (int r = 0; r < R; ++r) sum[r].store(to + r * a.pitch);
  }

  template <int V>
  [[gnu::noinline]] static void add_weights(const WeightArguments& a) {
    constexpr int kRows = Run<V>::kRegisters <= 4 ? 5 : 4;
    std::int64_t r = 0;
    for (; r + kRows <= a.rows; r += kRows) add_rows_of_weights<V, kRows>(a, r);
    for (; r + 3 <= a.rows; r += 3) add_rows_of_weights<V, 3>(a, r);
    for (; r < a.rows; ++r) add_rows_of_weights<V, 1>(a, r);
  }

  // Rows that are added at once. What is one chain anyway may be joined with others of its kind.
  static constexpr int rows(int runs) {
    if (runs <= kMostByTurns) return rows_of_tile(runs);
    const int registers = (runs + 1) / 2;
    return 24 / registers < kMaxRows ? 24 / registers : kMaxRows;
  }
};

}  // namespace

constexpr SparseSums kSparseSumsAvx512 = make_sparse_sums<Kernels>(16);

}  // namespace lockstep::conv2d_pool
