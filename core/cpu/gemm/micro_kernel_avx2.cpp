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
  // Halves of two rows are joined while loading, so that what is left are shuffles within halves.
  static constexpr int kTurn = 4;
  [[gnu::always_inline]] static void turn(const T* const* group, std::int64_t stride, Vector* x) {
    Vector r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)
      r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(group[0] + i * stride)),
                                  _mm_loadu_ps(group[1] + i * stride), 1);
    turn4(r, x);
  }
  // Whole vectors, each of which is read once: squares of four within halves first, then the halves.
  [[gnu::always_inline]] static void turn_square(const T* from, std::int64_t stride, Vector* x) {
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
      x[c] = _mm256_permute2f128_ps(turned[0][c], turned[1][c], 0x20);
      x[4 + c] = _mm256_permute2f128_ps(turned[0][c], turned[1][c], 0x31);
    }
  }

 private:
  // Squares of 4 x 4 within halves.
  [[gnu::always_inline]] static void turn4(const Vector* r, Vector* x) {
    const Vector even0 = _mm256_unpacklo_ps(r[0], r[1]), odd0 = _mm256_unpackhi_ps(r[0], r[1]);
    const Vector even1 = _mm256_unpacklo_ps(r[2], r[3]), odd1 = _mm256_unpackhi_ps(r[2], r[3]);
    x[0] = _mm256_shuffle_ps(even0, even1, 0x44);
    x[1] = _mm256_shuffle_ps(even0, even1, 0xee);
    x[2] = _mm256_shuffle_ps(odd0, odd1, 0x44);
    x[3] = _mm256_shuffle_ps(odd0, odd1, 0xee);
  }
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
  static constexpr int kTurn = 2;
  [[gnu::always_inline]] static void turn(const T* const* group, std::int64_t stride, Vector* x) {
    Vector r[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i)
      r[i] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(group[0] + i * stride)),
                                  _mm_loadu_pd(group[1] + i * stride), 1);
    x[0] = _mm256_unpacklo_pd(r[0], r[1]);
    x[1] = _mm256_unpackhi_pd(r[0], r[1]);
  }
};

}  // namespace

constexpr MicroKernels<float> kAvx2Float = make_micro_kernels<Float, 14, 6, 4, 2, 11, 4>();
constexpr MicroKernels<double> kAvx2Double = make_micro_kernels<Double, 14, 6, 4, 2, 7, 4>();

}  // namespace lockstep::cpu::gemm_detail
