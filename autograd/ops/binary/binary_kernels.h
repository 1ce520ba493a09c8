#pragma once

// What the binary family asks of a device.

#include <cstdint>

#include "lockstep/core/dtype.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

enum class BinaryOp : std::uint8_t {
  add,  ///< a + alpha b
  mul,
  div,
  maximum,
  minimum,
  lerp,             ///< a + alpha (b - a)
  prelu,            ///< a where it is above 0, else a b
  prelu_by_input,   ///< its slope for a
  prelu_by_weight,  ///< a times the slope for its weight where its input is b
  copysign,
  bit_and,  ///< this and the next ones: of integers alone
  bit_or,
  bit_xor,
  shift_left,
  shift_right,
  pow,  ///< this and all that follow have no portable kernel on CUDA (Note [Portable arithmetic])
  div_trunc,
  div_floor,
  remainder,
  fmod,
  atan2,
  hypot,
  log_add_exp,
  div_by_other,  ///< these and below: factors of gradients, see binary_functors.h
  greater_share,
  pow_by_base,
  pow_by_exponent,
  exp_difference,
  exp_share,
  selected,  ///< a b, and 0 where b is 0, whatever a is
};

enum class CompareOp : std::uint8_t { equal, not_equal, less, less_equal, same };

// What tells the operations apart in a profile.
inline const char* profile_label(BinaryOp op) {
  constexpr const char* kLabels[] = {"add",
                                     "mul",
                                     "div",
                                     "maximum",
                                     "minimum",
                                     "lerp",
                                     "prelu",
                                     "prelu_by_input",
                                     "prelu_by_weight",
                                     "copysign",
                                     "bitwise_and",
                                     "bitwise_or",
                                     "bitwise_xor",
                                     "bitwise_left_shift",
                                     "bitwise_right_shift",
                                     "pow",
                                     "div_trunc",
                                     "div_floor",
                                     "remainder",
                                     "fmod",
                                     "atan2",
                                     "hypot",
                                     "logaddexp",
                                     "div_by_other",
                                     "greater_share",
                                     "pow_by_base",
                                     "pow_by_exponent",
                                     "exp_difference",
                                     "exp_share",
                                     "selected"};
  return kLabels[static_cast<int>(op)];
}
inline const char* profile_label(CompareOp op) {
  constexpr const char* kLabels[] = {"equal", "not_equal", "less", "less_equal", "same"};
  return kLabels[static_cast<int>(op)];
}

/// A tensor that broadcasts to the result's shape, or a number.
struct Operand {
  const Tensor* tensor = nullptr;  ///< null: `scalar` counts
  Scalar scalar = 0;

  Operand(const Tensor& tensor) : tensor(&tensor) {}
  Operand(Scalar scalar) : scalar(scalar) {}
  Operand(double value) : scalar(value) {}
};

inline void settle_argument(const Operand& operand) {
  if (operand.tensor) settle_argument(*operand.tensor);
}
inline void add_argument(profile::Scope& scope, const Operand& operand) {
  if (operand.tensor) scope.add(*operand.tensor);
}

/// out = op(a, b), computed in dtype `compute` (float32, float64 or int64; Note [Compute types]) whatever the operands'
/// dtypes, then rounded to out's. At least one operand is a tensor; out may be one of them.
using BinaryKernel = void(BinaryOp op, double alpha, const Operand& a, const Operand& b, DType compute,
                          const Tensor& out);
BinaryKernel binary_cpu, binary_cuda;
/// The same with a bool result.
using CompareKernel = void(CompareOp op, const Operand& a, const Operand& b, DType compute, const Tensor& out);
CompareKernel compare_cpu, compare_cuda;
/// out = condition ? a : b; condition is bool.
using WhereKernel = void(const Tensor& condition, const Operand& a, const Operand& b, const Tensor& out);
WhereKernel where_cpu, where_cuda;

/// Rows of an operand on the CPU, converted to the compute type: one begins `step` elements behind the other. A row
/// whose elements are all the same counts as a single value.
template <typename C>
struct BinarySide {
  const C* data;
  bool one;
  std::int64_t step;
};
template <typename C, typename O>
using BinaryRows = void (*)(double alpha, BinarySide<C> a, BinarySide<C> b, O* out, std::int64_t step,
                            std::int64_t rows, std::int64_t count);
/// The loop of `op` for C, float or double; null if there is none.
template <typename C>
BinaryRows<C, C> binary_rows(BinaryOp op);
template <typename C>
BinaryRows<C, bool> compare_rows(CompareOp op);

/// A new tensor op(a, b), recording nothing: for backward functions. Broadcasts and promotes.
Tensor binary_values(BinaryOp op, const Operand& a, const Operand& b, double alpha = 1.0);
/// True where a and b are equal or both NaN.
Tensor same_values(const Tensor& a, const Tensor& b);

/// Calls f.operator()<C>() with the type of Note [Compute types].
template <typename F>
void with_compute_type(DType compute, F&& f) {
  switch (compute) {
    case kFloat32:
      return f.template operator()<float>();
    case kFloat64:
      return f.template operator()<double>();
    default:
      return f.template operator()<std::int64_t>();
  }
}

}  // namespace lockstep
