#include "lockstep/core/cpu/half_rows.h"

#include "lockstep/core/cpu/round_sixteen.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/vector_math.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::cpu {
namespace {

template <typename T>
void widen_one_by_one(const T* source, std::int64_t count, float* values) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(source[i]);
}

template <typename T>
void narrow_one_by_one(const float* values, std::int64_t count, T* target) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i) target[i] = T(values[i]);
}

#if defined(__x86_64__)

// The lanes of a vector of sixteen that `left` elements, at least one, take.
__mmask16 lanes(std::int64_t left) {
  return static_cast<__mmask16>(left < 16 ? (1u << left) - 1 : 0xffffu);
}

LOCKSTEP_WIDE void widen_wide(const BFloat16* source, std::int64_t count, float* values) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_epi16(source + i));
    _mm512_storeu_epi32(values + i, _mm512_slli_epi32(words, 16));
  }
  if (i == count) return;
  const __mmask16 mask = lanes(count - i);
  const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, source + i));
  _mm512_mask_storeu_epi32(values + i, mask, _mm512_slli_epi32(words, 16));
}

LOCKSTEP_WIDE void widen_wide(const Half* source, std::int64_t count, float* values) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) _mm512_storeu_ps(values + i, _mm512_cvtph_ps(_mm256_loadu_epi16(source + i)));
  if (i == count) return;
  const __mmask16 mask = lanes(count - i);
  _mm512_mask_storeu_ps(values + i, mask, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, source + i)));
}

// Of two vectors of round_sixteen(), the words that are the results.
alignas(64) constexpr std::uint16_t kUpperHalves[32] = {1,  3,  5,  7,  9,  11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31,
                                                        33, 35, 37, 39, 41, 43, 45, 47, 49, 51, 53, 55, 57, 59, 61, 63};

LOCKSTEP_WIDE void narrow_wide(const float* values, std::int64_t count, BFloat16* target) {
  const __m512i halves = _mm512_load_si512(kUpperHalves);
  std::int64_t i = 0;
  for (; i + 32 <= count; i += 32)
    _mm512_storeu_si512(target + i, _mm512_permutex2var_epi16(round_sixteen(_mm512_loadu_ps(values + i)), halves,
                                                              round_sixteen(_mm512_loadu_ps(values + i + 16))));
  for (; i < count; i += 16) {  // at most twice
    const __mmask16 mask = lanes(count - i);
    const __m512i words = round_sixteen(_mm512_maskz_loadu_ps(mask, values + i));
    _mm256_mask_storeu_epi16(target + i, mask, _mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16)));
  }
}

LOCKSTEP_WIDE void narrow_wide(const float* values, std::int64_t count, Half* target) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16)
    _mm256_storeu_epi16(target + i, _mm512_cvtps_ph(_mm512_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT));
  if (i == count) return;
  const __mmask16 mask = lanes(count - i);
  _mm256_mask_storeu_epi16(target + i, mask,
                           _mm512_cvtps_ph(_mm512_maskz_loadu_ps(mask, values + i), _MM_FROUND_TO_NEAREST_INT));
}

#else

template <typename T>
void widen_wide(const T* source, std::int64_t count, float* values) {
  widen_one_by_one(source, count, values);
}
template <typename T>
void narrow_wide(const float* values, std::int64_t count, T* target) {
  narrow_one_by_one(values, count, target);
}

#endif

// By vectors of eight, of which those of the build's own instructions are; what is left at a row's end goes one by one.
#if defined(__AVX2__)

// The bits of BFloat16::from_float() in the lower half of each lane.
__m256i rounded(__m256 x) {
  const __m256i word = _mm256_castps_si256(x), upper = _mm256_srli_epi32(word, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i sum = _mm256_add_epi32(_mm256_add_epi32(word, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

std::int64_t narrow_eights(const float* values, std::int64_t count, BFloat16* target) {
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    const __m256i words =
        _mm256_packus_epi32(rounded(_mm256_loadu_ps(values + i)), rounded(_mm256_loadu_ps(values + i + 8)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target + i), _mm256_permute4x64_epi64(words, 0xd8));
  }
  return i;
}

#else

std::int64_t narrow_eights(const float*, std::int64_t, BFloat16*) {
  return 0;
}

#endif

std::int64_t widen_eights(const BFloat16*, std::int64_t, float*) {
  return 0;  // what compilers make of the loop is as good
}

#if defined(__F16C__)

std::int64_t widen_eights(const Half* source, std::int64_t count, float* values) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm256_storeu_ps(values + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
  return i;
}
std::int64_t narrow_eights(const float* values, std::int64_t count, Half* target) {
  std::int64_t i = 0;
  for (; i + 8 <= count; i += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}

#else

std::int64_t widen_eights(const Half*, std::int64_t, float*) {
  return 0;
}
std::int64_t narrow_eights(const float*, std::int64_t, Half*) {
  return 0;
}

#endif

template <typename T>
void widen(const T* source, std::int64_t count, float* values, InstructionSet set) {
  if (set == InstructionSet::avx512) return widen_wide(source, count, values);
  const std::int64_t done = widen_eights(source, count, values);
  widen_one_by_one(source + done, count - done, values + done);
}

template <typename T>
void narrow(const float* values, std::int64_t count, T* target, InstructionSet set) {
  if (set == InstructionSet::avx512) return narrow_wide(values, count, target);
  const std::int64_t done = narrow_eights(values, count, target);
  narrow_one_by_one(values + done, count - done, target + done);
}

}  // namespace

void widen_row(const Half* source, std::int64_t count, float* values, InstructionSet set) {
  widen(source, count, values, set);
}
void widen_row(const BFloat16* source, std::int64_t count, float* values, InstructionSet set) {
  widen(source, count, values, set);
}
void narrow_row(const float* values, std::int64_t count, Half* target, InstructionSet set) {
  narrow(values, count, target, set);
}
void narrow_row(const float* values, std::int64_t count, BFloat16* target, InstructionSet set) {
  narrow(values, count, target, set);
}

}  // namespace lockstep::cpu
