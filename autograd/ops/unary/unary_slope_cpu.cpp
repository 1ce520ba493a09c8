#include <algorithm>
#include <cmath>

#include "lockstep/autograd/ops/unary/unary_functors.h"
#include "lockstep/autograd/ops/unary/unary_slope.h"
#include "lockstep/core/check.h"
#include "lockstep/core/elementwise.h"

namespace lockstep {
namespace {

// What value and slope have in common, and both from it: the functors' formulas to the bit, which compilers do not find
// out by themselves (a test compares).
struct GeluParts {
  static float common(float x) { return unary::Gelu<float>::cumulative(x); }
  static float value(float x, float c) { return x * c; }
  static float slope(float x, float c) {
    const float density = 0.3989422804014327f * math::exp(-0.5f * x * x);
    return std::fma(x, density, c);
  }
};
struct GeluTanhParts {
  static float common(float x) { return math::tanh(unary::GeluTanh<float>::inner(x)); }
  static float value(float x, float t) { return 0.5f * x * (1.0f + t); }
  static float slope(float x, float t) {
    const float inner = 0.7978845608028654f * std::fma(static_cast<float>(3 * 0.044715) * x, x, 1.0f);
    return std::fma(0.5f * x * std::fma(-t, t, 1.0f), inner, std::fma(0.5f, t, 0.5f));
  }
};
struct SiluParts {
  static float common(float x) { return math::sigmoid(x); }
  static float value(float x, float s) { return x * s; }
  static float slope(float x, float s) { return s * std::fma(x, 1.0f - s, 1.0f); }
};

template <typename Parts>
void row(const float* x, float* out, float* slope, std::int64_t count) {
  constexpr std::int64_t kPiece = 512;
  float common[kPiece];
  for (std::int64_t begin = 0; begin < count; begin += kPiece) {
    const std::int64_t length = std::min(kPiece, count - begin);
    const float* const from = x + begin;
    float *const values = out + begin, *const slopes = slope + begin;
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < length; ++i) common[i] = Parts::common(from[i]);
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < length; ++i) {
      values[i] = Parts::value(from[i], common[i]);
      slopes[i] = Parts::slope(from[i], common[i]);
    }
  }
}

using Row = void (*)(const float* x, float* out, float* slope, std::int64_t count);

Row row_function(UnaryOp op) {
  switch (op) {
    case UnaryOp::gelu:
      return row<GeluParts>;
    case UnaryOp::gelu_tanh:
      return row<GeluTanhParts>;
    case UnaryOp::silu:
      return row<SiluParts>;
    default:
      LOCKSTEP_ASSERT(false, "unary operation {} has no kernel of slopes", static_cast<int>(op));
      return nullptr;
  }
}

}  // namespace

void unary_slope_cpu(UnaryOp op, const Tensor& x, const Tensor& out, const Tensor& slope) {
  const Row apply = row_function(op);
  const float* const from = x.data<float>();
  float *const values = out.data<float>(), *const slopes = slope.data<float>();
  parallel_for(out.numel(), cpu::kElementBlock, [=](std::int64_t begin, std::int64_t end) {
    apply(from + begin, values + begin, slopes + begin, end - begin);
  });
}

void unary_slope_backward_cpu(UnaryOp, const Tensor& grad, const Tensor& slope, const Tensor& out) {
  const float *const incoming = grad.data<float>(), *const slopes = slope.data<float>();
  float* const to = out.data<float>();
  parallel_for(out.numel(), cpu::kElementBlock, [=](std::int64_t begin, std::int64_t end) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = begin; i < end; ++i) to[i] = incoming[i] * slopes[i];
  });
}

}  // namespace lockstep
