// Compiled for AVX-512 (F, BW, DQ, VL) whatever the build's own instruction set is: Note [One instruction set a file]
// in core/cpu/gemm/micro_kernel_body.h.

#include <immintrin.h>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_rows_body.h"
#include "lockstep/core/fixed_math.h"

namespace lockstep::detail {
namespace {

struct Sixteen {
  using Vector = __m512;
  static constexpr std::int64_t kLanes = 16;
  static Vector broadcast(float x) { return _mm512_set1_ps(x); }
  static Vector load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vector v) { _mm512_storeu_ps(p, v); }
  static Vector larger(Vector x, Vector y) { return _mm512_maskz_max_ps(0xffff, x, y); }
  static Vector first_or(Vector v, std::int64_t n, Vector other) {
    return _mm512_mask_mov_ps(other, n < kLanes ? static_cast<__mmask16>((1u << n) - 1) : 0xffff, v);
  }
  // A power of two of any exponent in one step, rounded once, as the two steps of exp_within() are.
  static Vector exp_to_one(Vector x) {
    namespace fixed = math::fixed;
    const auto number = [](float value) { return _mm512_set1_ps(value); };
    x = larger(number(fixed::kFarBelow), x);
    const Vector whole = _mm512_fmadd_ps(x, number(fixed::kLog2E), number(fixed::kRound)) - number(fixed::kRound);
    const Vector r =
        _mm512_fmadd_ps(whole, number(-fixed::kLn2Low), _mm512_fmadd_ps(whole, number(-fixed::kLn2High), x));
    Vector p = number(fixed::kExp6);
    p = _mm512_fmadd_ps(p, r, number(fixed::kExp5));
    p = _mm512_fmadd_ps(p, r, number(fixed::kExp4));
    p = _mm512_fmadd_ps(p, r, number(fixed::kExp3));
    p = _mm512_fmadd_ps(p, r, number(fixed::kExp2));
    p = _mm512_fmadd_ps(p * r, r, r) + number(1.0f);
    return _mm512_maskz_scalef_ps(0xffff, p, whole);
  }
  static cpu::Vec8 low(Vector v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 0); }
  static cpu::Vec8 high(Vector v) { return _mm512_maskz_extractf32x8_ps(0xff, v, 1); }

  struct Sums {
    Vector all = _mm512_setzero_ps();
    void add(std::int64_t, Vector v) { all += v; }
    cpu::Vec8 folded() const { return low(all) + high(all); }
  };
};

}  // namespace

constexpr RowFunctions kRowsBySixteen{weigh_rows<Sixteen>, slope_rows<Sixteen>};

}  // namespace lockstep::detail
