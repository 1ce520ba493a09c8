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
};

}  // namespace

constexpr MicroKernels<float> kAvx512Float = make_micro_kernels<Float, 14, 14, 9, 7>();
constexpr MicroKernels<double> kAvx512Double = make_micro_kernels<Double, 14, 14, 9, 7>();

}  // namespace lockstep::cpu::gemm_detail
