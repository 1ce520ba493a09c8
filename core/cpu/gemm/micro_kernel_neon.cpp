// AArch64, whose processors all have NEON.

#include <arm_neon.h>

#include "lockstep/core/cpu/gemm/micro_kernel_body.h"

namespace lockstep::cpu::gemm_detail {
namespace {

struct Float {
  using T = float;
  using Vector = float32x4_t;
  static constexpr int kLanes = 4;
  static Vector zero() { return vdupq_n_f32(0); }
  static Vector broadcast(const T* p) { return vld1q_dup_f32(p); }
  static Vector load(const T* p) { return vld1q_f32(p); }
  static Vector load_first(const T* p, std::int64_t n) {
    T lanes[kLanes] = {};
    for (std::int64_t i = 0; i < n; ++i) lanes[i] = p[i];
    return load(lanes);
  }
  static void store(T* p, Vector v) { vst1q_f32(p, v); }
  static void store_first(T* p, Vector v, std::int64_t n) {
    T lanes[kLanes];
    store(lanes, v);
    for (std::int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static Vector add(Vector x, Vector y) { return vaddq_f32(x, y); }
  static Vector multiply(Vector x, Vector y) { return vmulq_f32(x, y); }
  static Vector fused(Vector x, Vector y, Vector z) { return vfmaq_f32(z, x, y); }
  static Vector positive(Vector x) { return vbslq_f32(vcltzq_f32(x), zero(), x); }
  static constexpr int kTurn = kLanes;
  [[gnu::always_inline]] static void turn(const T* const* group, std::int64_t stride, Vector* x) {
    for (int p = 0; p < kTurn; ++p) {
      T lanes[kLanes];
      for (int j = 0; j < kLanes; ++j) lanes[j] = group[0][j * stride + p];
      x[p] = load(lanes);
    }
  }
};

struct Double {
  using T = double;
  using Vector = float64x2_t;
  static constexpr int kLanes = 2;
  static Vector zero() { return vdupq_n_f64(0); }
  static Vector broadcast(const T* p) { return vld1q_dup_f64(p); }
  static Vector load(const T* p) { return vld1q_f64(p); }
  static Vector load_first(const T* p, std::int64_t n) {
    const T lanes[kLanes] = {p[0], n > 1 ? p[1] : 0};
    return load(lanes);
  }
  static void store(T* p, Vector v) { vst1q_f64(p, v); }
  static void store_first(T* p, Vector v, std::int64_t n) {
    T lanes[kLanes];
    store(lanes, v);
    for (std::int64_t i = 0; i < n; ++i) p[i] = lanes[i];
  }
  static Vector add(Vector x, Vector y) { return vaddq_f64(x, y); }
  static Vector multiply(Vector x, Vector y) { return vmulq_f64(x, y); }
  static Vector fused(Vector x, Vector y, Vector z) { return vfmaq_f64(z, x, y); }
  static Vector positive(Vector x) { return vbslq_f64(vcltzq_f64(x), zero(), x); }
  static constexpr int kTurn = kLanes;
  [[gnu::always_inline]] static void turn(const T* const* group, std::int64_t stride, Vector* x) {
    for (int p = 0; p < kTurn; ++p) {
      T lanes[kLanes];
      for (int j = 0; j < kLanes; ++j) lanes[j] = group[0][j * stride + p];
      x[p] = load(lanes);
    }
  }
};

}  // namespace

constexpr MicroKernels<float> kNeonFloat = make_micro_kernels<Float, 14, 12, 8, 6, 8, 2>();
constexpr MicroKernels<double> kNeonDouble = make_micro_kernels<Double, 14, 12, 8, 6, 8, 2>();

}  // namespace lockstep::cpu::gemm_detail
