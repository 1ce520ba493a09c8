// Compiled for AVX2 and FMA whatever the build's own instruction set is.

#include <immintrin.h>

#include "lockstep/core/cpu/gemm/micro_kernel_body.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// Eight words of ones, then eight of zeros: a mask of n words begins 8 - n words in.
alignas(64) constexpr std::int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0};

__m256i first_words(std::int64_t n) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + 8 - n));
}

struct Float {
  using T = float;
  using Vector = __m256;
  static constexpr int kLanes = 8;
  static Vector zero() { return _mm256_setzero_ps(); }
  static Vector broadcast(const T* p) { return _mm256_broadcast_ss(p); }
  static Vector load(const T* p) { return _mm256_loadu_ps(p); }
  static Vector load_first(const T* p, std::int64_t n) { return _mm256_maskload_ps(p, first_words(n)); }
  static void store(T* p, Vector v) { _mm256_storeu_ps(p, v); }
  static void store_first(T* p, Vector v, std::int64_t n) { _mm256_maskstore_ps(p, first_words(n), v); }
  static Vector add(Vector x, Vector y) { return _mm256_add_ps(x, y); }
  static Vector multiply(Vector x, Vector y) { return _mm256_mul_ps(x, y); }
  static Vector fused(Vector x, Vector y, Vector z) { return _mm256_fmadd_ps(x, y, z); }
  static Vector positive(Vector x) { return _mm256_max_ps(zero(), x); }  // NaN: the second
};

struct Double {
  using T = double;
  using Vector = __m256d;
  static constexpr int kLanes = 4;
  static Vector zero() { return _mm256_setzero_pd(); }
  static Vector broadcast(const T* p) { return _mm256_broadcast_sd(p); }
  static Vector load(const T* p) { return _mm256_loadu_pd(p); }
  static Vector load_first(const T* p, std::int64_t n) { return _mm256_maskload_pd(p, first_words(2 * n)); }
  static void store(T* p, Vector v) { _mm256_storeu_pd(p, v); }
  static void store_first(T* p, Vector v, std::int64_t n) { _mm256_maskstore_pd(p, first_words(2 * n), v); }
  static Vector add(Vector x, Vector y) { return _mm256_add_pd(x, y); }
  static Vector multiply(Vector x, Vector y) { return _mm256_mul_pd(x, y); }
  static Vector fused(Vector x, Vector y, Vector z) { return _mm256_fmadd_pd(x, y, z); }
  static Vector positive(Vector x) { return _mm256_max_pd(zero(), x); }
};

}  // namespace

constexpr MicroKernels<float> kAvx2Float = make_micro_kernels<Float, 14, 6, 4, 2>();
constexpr MicroKernels<double> kAvx2Double = make_micro_kernels<Double, 14, 6, 4, 2>();

}  // namespace lockstep::cpu::gemm_detail
