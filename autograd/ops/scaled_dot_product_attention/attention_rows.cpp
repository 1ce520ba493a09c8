#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_rows.h"

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_rows_body.h"
#include "lockstep/core/cpu/exp8.h"
#include "lockstep/core/cpu/wide_functions.h"

namespace lockstep::detail {
namespace {

struct Eight {
  using Vector = cpu::Vec8;
  static constexpr std::int64_t kLanes = 8;
  static Vector broadcast(float x) { return cpu::broadcast8(x); }
  static Vector load(const float* p) { return cpu::load8(p); }
  static void store(float* p, Vector v) { cpu::store8(p, v); }
  static Vector larger(Vector x, Vector y) { return cpu::larger8(x, y); }
  static Vector first_or(Vector v, std::int64_t n, Vector other) {
    constexpr cpu::IntVec8 kLane{0, 1, 2, 3, 4, 5, 6, 7};
    return kLane < static_cast<std::int32_t>(n) ? v : other;
  }
  static Vector exp_to_one(Vector x) { return cpu::exp_to_one8(x); }
  static Vector low(Vector v) { return v; }
  static Vector high(Vector v) { return v; }

  struct Sums {
    Vector half[2]{};
    void add(std::int64_t j, Vector v) { half[j / kLanes % 2] += v; }
    Vector folded() const { return half[0] + half[1]; }
  };
};

}  // namespace

constexpr RowFunctions kRowsByEight{weigh_rows<Eight>, slope_rows<Eight>};

const RowFunctions& row_functions() {
#if defined(__x86_64__)
  if (cpu::has_wide_functions()) return kRowsBySixteen;
#endif
  return kRowsByEight;
}

}  // namespace lockstep::detail
