// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is.

#include <immintrin.h>

#include "lockstep/core/cpu/gemm/micro_kernel_body.h"

namespace lockstep::cpu::gemm_detail {
namespace {

struct Float {
  using T = float;
  using Vector = __m512;
  static constexpr int kLanes = 16;
  static __mmask16 first(std::int64_t n) { return static_cast<__mmask16>((1u << n) - 1); }
  static Vector zero() { return _mm512_setzero_ps(); }
  static Vector broadcast(const T* p) { return _mm512_set1_ps(*p); }
  static Vector load(const T* p) { return _mm512_loadu_ps(p); }
  static Vector load_first(const T* p, std::int64_t n) { return _mm512_maskz_loadu_ps(first(n), p); }
  static void store(T* p, Vector v) { _mm512_storeu_ps(p, v); }
  static void store_first(T* p, Vector v, std::int64_t n) { _mm512_mask_storeu_ps(p, first(n), v); }
  static Vector add(Vector x, Vector y) { return _mm512_add_ps(x, y); }
  static Vector multiply(Vector x, Vector y) { return _mm512_mul_ps(x, y); }
  static Vector fused(Vector x, Vector y, Vector z) { return _mm512_fmadd_ps(x, y, z); }
  static Vector positive(Vector x) { return _mm512_maskz_max_ps(0xffff, zero(), x); }  // NaN: the second
  // Quarters of four rows are joined while loading, so that what is left are shuffles within quarters.
  static constexpr int kTurn = 4;
  [[gnu::always_inline]] static void turn(const T* const* group, std::int64_t stride, Vector* x) {
    Vector r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m128 low = _mm_loadu_ps(group[0] + i * stride), high = _mm_loadu_ps(group[2] + i * stride);
      const __m256 lower = _mm256_insertf128_ps(_mm256_castps128_ps256(low), _mm_loadu_ps(group[1] + i * stride), 1);
      const __m256 upper = _mm256_insertf128_ps(_mm256_castps128_ps256(high), _mm_loadu_ps(group[3] + i * stride), 1);
      r[i] = _mm512_insertf32x8(_mm512_castps256_ps512(lower), upper, 1);
    }
    turn4(r, x);
  }
  // Whole lines, each of which is read once: squares of four within quarters first, then the quarters.
  [[gnu::always_inline]] static void turn_square(const T* from, std::int64_t stride, Vector* x) {
    Vector low[2][4], high[2][4];
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      Vector turned[2][4];
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        Vector r[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i, from += stride) r[i] = load(from);
        turn4(r, turned[g]);
      }
#pragma GCC unroll 4
      for (int c = 0; c < 4; ++c) {
        low[half][c] = _mm512_maskz_shuffle_f32x4(0xffff, turned[0][c], turned[1][c], 0x44);
        high[half][c] = _mm512_maskz_shuffle_f32x4(0xffff, turned[0][c], turned[1][c], 0xee);
      }
    }
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      x[c] = _mm512_maskz_shuffle_f32x4(0xffff, low[0][c], low[1][c], 0x88);
      x[4 + c] = _mm512_maskz_shuffle_f32x4(0xffff, low[0][c], low[1][c], 0xdd);
      x[8 + c] = _mm512_maskz_shuffle_f32x4(0xffff, high[0][c], high[1][c], 0x88);
      x[12 + c] = _mm512_maskz_shuffle_f32x4(0xffff, high[0][c], high[1][c], 0xdd);
    }
  }
  // Halves of lines of 16 rows, of which the first eight begin at `low`: halves of two rows are joined while loading.
  [[gnu::always_inline]] static void turn_half(const T* low, const T* high, std::int64_t stride, Vector* x) {
    Vector turned[2][4];
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g, low += 4 * stride, high += 4 * stride) {
      Vector r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i)
        r[i] = _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(low + i * stride)),
                                  _mm256_loadu_ps(high + i * stride), 1);
      turn4(r, turned[g]);
    }
    const __m512i even = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13),
                  odd = _mm512_setr_epi64(2, 3, 10, 11, 6, 7, 14, 15);
#pragma GCC unroll 4
    for (int c = 0; c < 4; ++c) {
      const __m512d first = _mm512_castps_pd(turned[0][c]), second = _mm512_castps_pd(turned[1][c]);
      x[c] = _mm512_castpd_ps(_mm512_permutex2var_pd(first, even, second));
      x[4 + c] = _mm512_castpd_ps(_mm512_permutex2var_pd(first, odd, second));
    }
  }

 private:
  // Squares of 4 x 4 within quarters.
  [[gnu::always_inline]] static void turn4(const Vector* r, Vector* x) {
    const Vector even0 = _mm512_maskz_unpacklo_ps(0xffff, r[0], r[1]),
                 odd0 = _mm512_maskz_unpackhi_ps(0xffff, r[0], r[1]);
    const Vector even1 = _mm512_maskz_unpacklo_ps(0xffff, r[2], r[3]),
                 odd1 = _mm512_maskz_unpackhi_ps(0xffff, r[2], r[3]);
    x[0] = _mm512_maskz_shuffle_ps(0xffff, even0, even1, 0x44);
    x[1] = _mm512_maskz_shuffle_ps(0xffff, even0, even1, 0xee);
    x[2] = _mm512_maskz_shuffle_ps(0xffff, odd0, odd1, 0x44);
    x[3] = _mm512_maskz_shuffle_ps(0xffff, odd0, odd1, 0xee);
  }
};

struct Double {
  using T = double;
  using Vector = __m512d;
  static constexpr int kLanes = 8;
  static __mmask8 first(std::int64_t n) { return static_cast<__mmask8>((1u << n) - 1); }
  static Vector zero() { return _mm512_setzero_pd(); }
  static Vector broadcast(const T* p) { return _mm512_set1_pd(*p); }
  static Vector load(const T* p) { return _mm512_loadu_pd(p); }
  static Vector load_first(const T* p, std::int64_t n) { return _mm512_maskz_loadu_pd(first(n), p); }
  static void store(T* p, Vector v) { _mm512_storeu_pd(p, v); }
  static void store_first(T* p, Vector v, std::int64_t n) { _mm512_mask_storeu_pd(p, first(n), v); }
  static Vector add(Vector x, Vector y) { return _mm512_add_pd(x, y); }
  static Vector multiply(Vector x, Vector y) { return _mm512_mul_pd(x, y); }
  static Vector fused(Vector x, Vector y, Vector z) { return _mm512_fmadd_pd(x, y, z); }
  static Vector positive(Vector x) { return _mm512_maskz_max_pd(0xff, zero(), x); }
  static constexpr int kTurn = 2;
  [[gnu::always_inline]] static void turn(const T* const* group, std::int64_t stride, Vector* x) {
    Vector r[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      r[i] = _mm512_castpd128_pd512(_mm_loadu_pd(group[0] + i * stride));
      r[i] = _mm512_mask_broadcast_f64x2(r[i], 0x0c, _mm_loadu_pd(group[1] + i * stride));
      r[i] = _mm512_mask_broadcast_f64x2(r[i], 0x30, _mm_loadu_pd(group[2] + i * stride));
      r[i] = _mm512_mask_broadcast_f64x2(r[i], 0xc0, _mm_loadu_pd(group[3] + i * stride));
    }
    x[0] = _mm512_maskz_unpacklo_pd(0xff, r[0], r[1]);
    x[1] = _mm512_maskz_unpackhi_pd(0xff, r[0], r[1]);
  }
};

}  // namespace

constexpr MicroKernels<float> kAvx512Float = make_micro_kernels<Float, 14, 14, 9, 6, 14, 8>();
constexpr MicroKernels<double> kAvx512Double = make_micro_kernels<Double, 14, 14, 9, 6, 14, 8>();

}  // namespace lockstep::cpu::gemm_detail
