#pragma once

// Sixteen floats as bfloat16, for functions that are compiled for AVX-512. For .cpp files only.

#if defined(__x86_64__)
#include <immintrin.h>

namespace lockstep::cpu {

/// The bits of BFloat16::from_float() in the upper half of each lane.
__attribute__((always_inline, target("avx512f"))) inline __m512i round_sixteen(__m512 x) {
  const __m512i word = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_epi32(_mm512_srli_epi32(word, 16), _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(_mm512_add_epi32(word, _mm512_set1_epi32(0x7fff)), odd);
  return _mm512_mask_or_epi32(sum, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), word, _mm512_set1_epi32(0x400000));
}

}  // namespace lockstep::cpu
#endif
