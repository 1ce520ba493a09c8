#pragma once

// The limit that shares of the peak are taken of: fused multiply-adds of float32 in registers alone, with the widest
// vectors that the kernels use.

#include "lockstep/core/cpu/instruction_set.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace peak {

inline constexpr int kChains = 12;  // enough to hide the latency of an addition

#if defined(__x86_64__)
[[gnu::noinline, gnu::target("avx512f")]] inline float multiply_add16(float seed, long steps) {
  __m512 sums[kChains];
  const __m512 factor = _mm512_set1_ps(seed), term = _mm512_set1_ps(1 - seed);
  for (int i = 0; i < kChains; ++i) sums[i] = _mm512_set1_ps(static_cast<float>(i));
  for (long step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm512_fmadd_ps(sums[i], factor, term);
  }
  float kept = 0;
  for (const __m512& sum : sums) kept += sum[0];
  return kept;
}
[[gnu::noinline, gnu::target("avx2,fma")]] inline float multiply_add8(float seed, long steps) {
  __m256 sums[kChains];
  const __m256 factor = _mm256_set1_ps(seed), term = _mm256_set1_ps(1 - seed);
  for (int i = 0; i < kChains; ++i) sums[i] = _mm256_set1_ps(static_cast<float>(i));
  for (long step = 0; step < steps; ++step) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = _mm256_fmadd_ps(sums[i], factor, term);
  }
  float kept = 0;
  for (const __m256& sum : sums) kept += sum[0];
  return kept;
}
#endif

/// Does `steps` times kChains vectors of multiply-adds and returns the floating-point operations done, 0 where there is
/// no such loop. `kept` holds a value that depends on all of them.
inline double work([[maybe_unused]] lockstep::cpu::InstructionSet set, [[maybe_unused]] long steps,
                   [[maybe_unused]] float& kept) {
#if defined(__x86_64__)
  const bool wide = set == lockstep::cpu::InstructionSet::avx512;
  kept += wide ? multiply_add16(0.999f, steps) : multiply_add8(0.999f, steps);
  return 2.0 * (wide ? 16 : 8) * kChains * static_cast<double>(steps);
#else
  return 0;
#endif
}

}  // namespace peak
