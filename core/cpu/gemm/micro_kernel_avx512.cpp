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
  [[gnu::always_inline]] static void transpose(const T* from, std::int64_t stride, T* to, std::int64_t to_stride) {
    const T *quarter0 = from, *quarter1 = from + 4 * stride, *quarter2 = from + 8 * stride,
            *quarter3 = from + 12 * stride;
#pragma GCC unroll 1
    for (int h = 0; h < 16; h += 4) {
      Vector r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) {
        r[i] = _mm512_castps128_ps512(_mm_loadu_ps(quarter0 + i * stride));
        r[i] = _mm512_mask_broadcast_f32x4(r[i], 0x00f0, _mm_loadu_ps(quarter1 + i * stride));
        r[i] = _mm512_mask_broadcast_f32x4(r[i], 0x0f00, _mm_loadu_ps(quarter2 + i * stride));
        r[i] = _mm512_mask_broadcast_f32x4(r[i], 0xf000, _mm_loadu_ps(quarter3 + i * stride));
      }
      const Vector even0 = _mm512_maskz_unpacklo_ps(0xffff, r[0], r[1]),
                   odd0 = _mm512_maskz_unpackhi_ps(0xffff, r[0], r[1]);
      const Vector even1 = _mm512_maskz_unpacklo_ps(0xffff, r[2], r[3]),
                   odd1 = _mm512_maskz_unpackhi_ps(0xffff, r[2], r[3]);
      store(to, _mm512_maskz_shuffle_ps(0xffff, even0, even1, 0x44));
      store(to + to_stride, _mm512_maskz_shuffle_ps(0xffff, even0, even1, 0xee));
      store(to + 2 * to_stride, _mm512_maskz_shuffle_ps(0xffff, odd0, odd1, 0x44));
      store(to + 3 * to_stride, _mm512_maskz_shuffle_ps(0xffff, odd0, odd1, 0xee));
      quarter0 += 4, quarter1 += 4, quarter2 += 4, quarter3 += 4;
      to += 4 * to_stride;
    }
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
  [[gnu::always_inline]] static void transpose(const T* from, std::int64_t stride, T* to, std::int64_t to_stride) {
#pragma GCC unroll 4
    for (int h = 0; h < 8; h += 2) {
      Vector r[2];
#pragma GCC unroll 2
      for (int i = 0; i < 2; ++i) {
        r[i] = _mm512_castpd128_pd512(_mm_loadu_pd(from + i * stride + h));
        r[i] = _mm512_mask_broadcast_f64x2(r[i], 0x0c, _mm_loadu_pd(from + (i + 2) * stride + h));
        r[i] = _mm512_mask_broadcast_f64x2(r[i], 0x30, _mm_loadu_pd(from + (i + 4) * stride + h));
        r[i] = _mm512_mask_broadcast_f64x2(r[i], 0xc0, _mm_loadu_pd(from + (i + 6) * stride + h));
      }
      store(to + h * to_stride, _mm512_maskz_unpacklo_pd(0xff, r[0], r[1]));
      store(to + (h + 1) * to_stride, _mm512_maskz_unpackhi_pd(0xff, r[0], r[1]));
    }
  }
};

}  // namespace

constexpr MicroKernels<float> kAvx512Float = make_micro_kernels<Float, 14, 14, 9, 7>();
constexpr MicroKernels<double> kAvx512Double = make_micro_kernels<Double, 14, 14, 9, 7>();

}  // namespace lockstep::cpu::gemm_detail
