#pragma once

// Eight floats at a time, by the compiler's vector extension: one AVX register, two of SSE or NEON. For .cpp files
// only.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__FMA__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#pragma GCC diagnostic ignored "-Wpsabi"  // every function that takes or returns vectors is inlined

namespace lockstep::cpu {

inline constexpr std::int64_t kLanes = 8;
typedef float Vec8 __attribute__((vector_size(32)));
typedef std::int32_t IntVec8 __attribute__((vector_size(32)));
typedef std::uint8_t ByteVec8 __attribute__((vector_size(8)));

/// From and to any address.
[[gnu::always_inline]] inline Vec8 load8(const float* p) {
  Vec8 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
[[gnu::always_inline]] inline void store8(float* p, Vec8 v) {
  std::memcpy(p, &v, sizeof v);
}
/// v, of any kind of vector, in a register: what is used several times is then loaded once, not by each instruction
/// that can read memory. Where there are 32 registers the compiler does so by itself.
template <typename V>
[[gnu::always_inline]] inline V keep(V v) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  asm("" : "+x"(v));
#endif
  return v;
}
[[gnu::always_inline]] inline Vec8 broadcast8(float value) {
  return Vec8{value, value, value, value, value, value, value, value};
}
[[gnu::always_inline]] inline IntVec8 load8(const std::int32_t* p) {
  IntVec8 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
[[gnu::always_inline]] inline void store8(std::int32_t* p, IntVec8 v) {
  std::memcpy(p, &v, sizeof v);
}
/// Eight bytes as integers.
[[gnu::always_inline]] inline IntVec8 widen8(const std::uint8_t* p) {
#if defined(__AVX2__)
  return reinterpret_cast<IntVec8>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  ByteVec8 v;
  std::memcpy(&v, p, sizeof v);
  return __builtin_convertvector(v, IntVec8);
#endif
}
/// The lowest byte of each lane.
[[gnu::always_inline]] inline void narrow8(std::uint8_t* p, IntVec8 v) {
#if defined(__AVX2__)
  const __m256i whole = reinterpret_cast<__m256i>(v) & _mm256_set1_epi32(255);
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
#else
  const ByteVec8 bytes = __builtin_convertvector(v, ByteVec8);
  std::memcpy(p, &bytes, sizeof bytes);
#endif
}
/// Bit i is set if lane i of a comparison's result is.
[[gnu::always_inline]] inline unsigned mask8(IntVec8 lanes) {
#if defined(__AVX__)
  return static_cast<unsigned>(__builtin_ia32_movmskps256(reinterpret_cast<Vec8>(lanes)));
#else
  unsigned bits = 0;
  for (int i = 0; i < 8; ++i) bits |= static_cast<unsigned>(lanes[i] & 1) << i;
  return bits;
#endif
}
/// a * b + c, rounded once. The compiler joins no product with a sum (cmake/lockstep_compiler.cmake), so kernels that
/// want one instruction for both say so.
[[gnu::always_inline]] inline Vec8 fma8(Vec8 a, Vec8 b, Vec8 c) {
#if defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  Vec8 sum;
  for (int i = 0; i < 8; ++i) sum[i] = std::fma(a[i], b[i], c[i]);
  return sum;
#endif
}
/// a > b ? a : b and a < b ? a : b of each lane: b where one of them is NaN.
[[gnu::always_inline]] inline Vec8 larger8(Vec8 a, Vec8 b) {
#if defined(__AVX__)
  return _mm256_max_ps(a, b);
#else
  for (int i = 0; i < 8; ++i) a[i] = a[i] > b[i] ? a[i] : b[i];
  return a;
#endif
}
[[gnu::always_inline]] inline Vec8 smaller8(Vec8 a, Vec8 b) {
#if defined(__AVX__)
  return _mm256_min_ps(a, b);
#else
  for (int i = 0; i < 8; ++i) a[i] = a[i] < b[i] ? a[i] : b[i];
  return a;
#endif
}
/// The sum of all lanes, always in the same order.
[[gnu::always_inline]] inline float sum8(Vec8 s) {
  return ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
}

}  // namespace lockstep::cpu
