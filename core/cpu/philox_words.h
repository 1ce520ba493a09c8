#pragma once

// Philox in bulk on the CPU. For .cpp files only.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/philox.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace lockstep::cpu {

/// Counters that philox_words() works on at a time.
inline constexpr int kPhiloxLanes = 64;
/// Words of one call: four for each counter.
inline constexpr int kPhiloxWords = 4 * kPhiloxLanes;

#if defined(__AVX2__)

namespace detail {

/// Words of four neighbouring counters. Each 64-bit lane holds one counter's word in its lower half; the upper halves
/// hold leftovers, which the 32 x 32 multiplication and the final blend ignore.
inline void philox_four(philox::Key key, std::uint64_t counter, std::uint32_t* words) {
  const __m256i index =
      _mm256_add_epi64(_mm256_set1_epi64x(static_cast<long long>(counter)), _mm256_setr_epi64x(0, 1, 2, 3));
  const __m256i first = _mm256_set1_epi64x(0xD2511F53ll), second = _mm256_set1_epi64x(0xCD9E8D57ll);
  __m256i w0 = index, w1 = _mm256_srli_epi64(index, 32), w2 = _mm256_setzero_si256(), w3 = w2;
#pragma GCC unroll 10
  for (std::uint32_t r = 0; r < 10; ++r) {
    const __m256i low = _mm256_set1_epi64x(static_cast<long long>(key.lo + r * 0x9E3779B9u));
    const __m256i high = _mm256_set1_epi64x(static_cast<long long>(key.hi + r * 0xBB67AE85u));
    const __m256i a = _mm256_mul_epu32(first, w0), b = _mm256_mul_epu32(second, w2);
    w0 = _mm256_xor_si256(_mm256_srli_epi64(b, 32), _mm256_xor_si256(w1, low));
    w2 = _mm256_xor_si256(_mm256_srli_epi64(a, 32), _mm256_xor_si256(w3, high));
    w1 = b;
    w3 = a;
  }
  const __m256i left = _mm256_blend_epi32(w0, _mm256_slli_epi64(w1, 32), 0xAA);
  const __m256i right = _mm256_blend_epi32(w2, _mm256_slli_epi64(w3, 32), 0xAA);
  const __m256i even = _mm256_unpacklo_epi64(left, right), odd = _mm256_unpackhi_epi64(left, right);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), _mm256_permute2x128_si256(even, odd, 0x20));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words + 8), _mm256_permute2x128_si256(even, odd, 0x31));
}

/// The same with eight counters to a vector: Note [Wide functions].
LOCKSTEP_WIDE inline void philox_words_wide(philox::Key key, std::uint64_t counter, std::uint32_t* words) {
  typedef unsigned long long Vec __attribute__((vector_size(64)));
  const Vec first = Vec{} + 0xD2511F53, second = Vec{} + 0xCD9E8D57;
  for (int i = 0; i < kPhiloxLanes; i += 8, words += 32) {
    const Vec index = Vec{} + (counter + static_cast<unsigned>(i)) + Vec{0, 1, 2, 3, 4, 5, 6, 7};
    Vec w0 = index, w1 = index >> 32, w2{}, w3{};
#pragma GCC unroll 10
    for (std::uint32_t r = 0; r < 10; ++r) {
      // Products of the lower halves. The intrinsic without a mask makes some compilers warn.
      const Vec a = Vec(_mm512_maskz_mul_epu32(0xff, __m512i(first), __m512i(w0)));
      const Vec b = Vec(_mm512_maskz_mul_epu32(0xff, __m512i(second), __m512i(w2)));
      w0 = (b >> 32) ^ w1 ^ (Vec{} + (key.lo + r * 0x9E3779B9u));
      w2 = (a >> 32) ^ w3 ^ (Vec{} + (key.hi + r * 0xBB67AE85u));
      w1 = b;
      w3 = a;
    }
    const Vec left = (w0 & 0xffffffff) | (w1 << 32), right = (w2 & 0xffffffff) | (w3 << 32);
    const Vec front = __builtin_shufflevector(left, right, 0, 8, 1, 9, 2, 10, 3, 11);
    const Vec back = __builtin_shufflevector(left, right, 4, 12, 5, 13, 6, 14, 7, 15);
    std::memcpy(words, &front, sizeof front);
    std::memcpy(words + 16, &back, sizeof back);
  }
}

}  // namespace detail

/// words[i] = philox::word_at(key, 4 * counter + i) for i < kPhiloxWords.
inline void philox_words(philox::Key key, std::uint64_t counter, std::uint32_t* __restrict words) {
  if (has_wide_functions()) return detail::philox_words_wide(key, counter, words);
  for (int i = 0; i < kPhiloxLanes; i += 4)
    detail::philox_four(key, counter + static_cast<std::uint64_t>(i), words + 4 * i);
}

#else

/// words[i] = philox::word_at(key, 4 * counter + i) for i < kPhiloxWords. Lanes are independent, so that the compiler
/// may keep several counters in a vector register.
inline void philox_words(philox::Key key, std::uint64_t counter, std::uint32_t* __restrict words) {
  for (int i = 0; i < kPhiloxLanes; ++i) {
    const philox::Block block = philox::generate(key, counter + static_cast<std::uint64_t>(i));
    for (int j = 0; j < 4; ++j) words[4 * i + j] = block.word[j];
  }
}

#endif

/// Calls take(at, words, count) for runs of the elements first .. first + n - 1: words[i] is that of number first + at
/// + i.
template <typename Take>
void for_each_words(philox::Key key, std::int64_t first, std::int64_t n, Take&& take) {
  alignas(64) std::uint32_t words[kPhiloxWords];
  for (std::int64_t group = first & ~std::int64_t{3}; group < first + n; group += kPhiloxWords) {
    philox_words(key, static_cast<std::uint64_t>(group) / 4, words);
    const std::int64_t from = std::max(group, first), to = std::min(group + kPhiloxWords, first + n);
    take(from - first, words + (from - group), to - from);
  }
}

}  // namespace lockstep::cpu
