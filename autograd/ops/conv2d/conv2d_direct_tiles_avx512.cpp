// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is. There are 32 registers, and vectors
// of sixteen for results whose rows have room for them, or that take eight of each of two rows.

#include <immintrin.h>

#include "lockstep/autograd/ops/conv2d/conv2d_direct_tile_body.h"

namespace lockstep::conv2d_direct {
namespace {

struct Sixteen {
  typedef float Vec __attribute__((vector_size(64)));
  static constexpr int kLanes = 16;
  [[gnu::always_inline]] static Vec load(const float* p, std::int64_t /*pitch*/) {
    return reinterpret_cast<Vec>(_mm512_loadu_ps(p));
  }
  [[gnu::always_inline]] static void store(float* p, Vec v, std::int64_t /*pitch*/) {
    _mm512_storeu_ps(p, reinterpret_cast<__m512>(v));
  }
  [[gnu::always_inline]] static Vec broadcast(float value) { return reinterpret_cast<Vec>(_mm512_set1_ps(value)); }
  [[gnu::always_inline]] static Vec fused(Vec a, Vec b, Vec c) {
    return reinterpret_cast<Vec>(
        _mm512_fmadd_ps(reinterpret_cast<__m512>(a), reinterpret_cast<__m512>(b), reinterpret_cast<__m512>(c)));
  }
};

struct TwoRows : Sixteen {
  [[gnu::always_inline]] static Vec load(const float* p, std::int64_t pitch) {
    const __m512 first = _mm512_castps256_ps512(_mm256_loadu_ps(p));
    return reinterpret_cast<Vec>(_mm512_insertf32x8(first, _mm256_loadu_ps(p + pitch), 1));
  }
  [[gnu::always_inline]] static void store(float* p, Vec v, std::int64_t pitch) {
    cpu::store8(p, __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7));
    cpu::store8(p + pitch, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15));
  }
};

}  // namespace

constexpr Tiles kTilesAvx512 = make_tiles<Eight, 6>();
constexpr Tiles kTilesOfSixteen = make_tiles<Sixteen, 6>();
constexpr Tiles kTilesOfTwoRows = make_tiles<TwoRows, 6>();

}  // namespace lockstep::conv2d_direct
