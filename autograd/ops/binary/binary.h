#pragma once

#include <concepts>
#include <cstdint>

#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

// Arithmetic of two tensors, or of a tensor and a number. Shapes broadcast as in NumPy; dtypes promote as in PyTorch
// (promote_types for two tensors, result_dtype for a number: a float16 tensor times 2.5 stays float16, an integer
// tensor times 2.5 becomes float32). All operands must be on one device. float16 and bfloat16 are computed in float32
// and rounded once; integers wrap. Throws Error for shapes that do not broadcast, mixed devices and undefined tensors.

/// a + alpha b. On bool tensors: or.
Tensor add(const Tensor& a, const Tensor& b, double alpha = 1.0);
Tensor add(const Tensor& a, Scalar b);
/// a - alpha b. Throws Error for two bool tensors.
Tensor sub(const Tensor& a, const Tensor& b, double alpha = 1.0);
Tensor sub(const Tensor& a, Scalar b);
Tensor sub(Scalar a, const Tensor& b);
/// On bool tensors: and.
Tensor mul(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, Scalar b);
/// True division: integers give float32.
Tensor div(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, Scalar b);
Tensor div(Scalar a, const Tensor& b);
/// How div() rounds quotients to whole numbers: towards zero or downwards.
enum class RoundingMode : std::uint8_t { trunc, floor };
/// The rounded quotient; its gradient is 0. Integers stay integers, and dividing them by 0 throws Error (on CUDA
/// devices, whose values the host does not wait for, it gives 0). Throws Error for two bool tensors.
Tensor div(const Tensor& a, const Tensor& b, RoundingMode rounding);
Tensor div(const Tensor& a, Scalar b, RoundingMode rounding);
Tensor div(Scalar a, const Tensor& b, RoundingMode rounding);
/// The larger (smaller) of both; NaN if either is. Equal values share the gradient.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// maximum(a, b), which libtorch calls max() too.
template <std::derived_from<Tensor> T>
Tensor max(const Tensor& a, const T& b) {
  return maximum(a, b);
}
/// minimum(a, b), which libtorch calls min() too.
template <std::derived_from<Tensor> T>
Tensor min(const Tensor& a, const T& b) {
  return minimum(a, b);
}
/// maximum(a, b) for a number.
Tensor maximum(const Tensor& a, Scalar b);
/// minimum(a, b) for a number.
Tensor minimum(const Tensor& a, Scalar b);
/// a to the power b. Integers stay integers; a negative power of one other than 1 and -1 gives 0.
Tensor pow(const Tensor& a, const Tensor& b);
Tensor pow(Scalar a, const Tensor& b);

/// x within bounds that are tensors, of which one may be undefined; all three broadcast and promote. NaN in any of them
/// gives NaN. Where min is above max the result is max. The gradient goes to x between the bounds, else to the bound
/// that took its place; x and a bound that are equal share it.
Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max = {});

/// Elements of a where condition (bool) is true, of b elsewhere. All three broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, Scalar b);
Tensor where(const Tensor& condition, Scalar a, const Tensor& b);
/// Of two numbers: int64, bool or float32, as these are written.
Tensor where(const Tensor& condition, Scalar a, Scalar b);

/// Comparisons, element by element: bool tensors, without gradients. NaN is unequal to everything, and neither larger
/// nor smaller than anything.
Tensor eq(const Tensor& a, const Tensor& b);
Tensor eq(const Tensor& a, Scalar b);
Tensor ne(const Tensor& a, const Tensor& b);
Tensor ne(const Tensor& a, Scalar b);
Tensor lt(const Tensor& a, const Tensor& b);
Tensor lt(const Tensor& a, Scalar b);
Tensor le(const Tensor& a, const Tensor& b);
Tensor le(const Tensor& a, Scalar b);
Tensor gt(const Tensor& a, const Tensor& b);
Tensor gt(const Tensor& a, Scalar b);
Tensor ge(const Tensor& a, const Tensor& b);
Tensor ge(const Tensor& a, Scalar b);

// clang-format off
/// The functions above as operators.
inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator+(const Tensor& a, Scalar b) { return add(a, b); }
inline Tensor operator+(Scalar a, const Tensor& b) { return add(b, a); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator-(const Tensor& a, Scalar b) { return sub(a, b); }
inline Tensor operator-(Scalar a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator*(const Tensor& a, Scalar b) { return mul(a, b); }
inline Tensor operator*(Scalar a, const Tensor& b) { return mul(b, a); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator/(const Tensor& a, Scalar b) { return div(a, b); }
inline Tensor operator/(Scalar a, const Tensor& b) { return div(a, b); }

/// As in libtorch, these compare element by element; Tensor::is_same() tells whether two handles name one tensor.
inline Tensor operator==(const Tensor& a, const Tensor& b) { return eq(a, b); }
inline Tensor operator==(const Tensor& a, Scalar b) { return eq(a, b); }
inline Tensor operator==(Scalar a, const Tensor& b) { return eq(b, a); }
inline Tensor operator!=(const Tensor& a, const Tensor& b) { return ne(a, b); }
inline Tensor operator!=(const Tensor& a, Scalar b) { return ne(a, b); }
inline Tensor operator!=(Scalar a, const Tensor& b) { return ne(b, a); }
inline Tensor operator<(const Tensor& a, const Tensor& b) { return lt(a, b); }
inline Tensor operator<(const Tensor& a, Scalar b) { return lt(a, b); }
inline Tensor operator<(Scalar a, const Tensor& b) { return gt(b, a); }
inline Tensor operator<=(const Tensor& a, const Tensor& b) { return le(a, b); }
inline Tensor operator<=(const Tensor& a, Scalar b) { return le(a, b); }
inline Tensor operator<=(Scalar a, const Tensor& b) { return ge(b, a); }
inline Tensor operator>(const Tensor& a, const Tensor& b) { return gt(a, b); }
inline Tensor operator>(const Tensor& a, Scalar b) { return gt(a, b); }
inline Tensor operator>(Scalar a, const Tensor& b) { return lt(b, a); }
inline Tensor operator>=(const Tensor& a, const Tensor& b) { return ge(a, b); }
inline Tensor operator>=(const Tensor& a, Scalar b) { return ge(a, b); }
inline Tensor operator>=(Scalar a, const Tensor& b) { return le(b, a); }
// clang-format on

/// In place: the result is rounded to a's dtype, which must be of the result's category (a float result does not go
/// into an integer tensor), and b must broadcast to a's shape. Recorded. Throws Error for what does not fit, and while
/// recording for leaves that require gradients and for views.
const Tensor& operator+=(const Tensor& a, const Tensor& b);
const Tensor& operator+=(const Tensor& a, Scalar b);
const Tensor& operator-=(const Tensor& a, const Tensor& b);
const Tensor& operator-=(const Tensor& a, Scalar b);
const Tensor& operator*=(const Tensor& a, const Tensor& b);
const Tensor& operator*=(const Tensor& a, Scalar b);
const Tensor& operator/=(const Tensor& a, const Tensor& b);
const Tensor& operator/=(const Tensor& a, Scalar b);

/// a - b floor(a / b), exactly: the remainder with the divisor's sign, as Python's `%`. Gradients as those of the
/// formula, whose quotient is constant. Throws Error for bool operands, and for integers divided by 0 on the CPU.
Tensor remainder(const Tensor& a, const Tensor& b);
Tensor remainder(const Tensor& a, Scalar b);
/// The remainder with the dividend's sign, as C's fmod, exactly. Gradients and errors as remainder()'s.
Tensor fmod(const Tensor& a, const Tensor& b);
Tensor fmod(const Tensor& a, Scalar b);
/// The angle, from -pi to pi, of the points (b, a): atan2(y, x). Integers give float32.
Tensor atan2(const Tensor& a, const Tensor& b);
/// sqrt(a^2 + b^2), without overflow. Integers give float32.
Tensor hypot(const Tensor& a, const Tensor& b);
/// |a| with the sign of b, that of -0 and of NaN too. Integers give float32. The gradient goes to a, and is 0 where a
/// is.
Tensor copysign(const Tensor& a, const Tensor& b);
Tensor copysign(const Tensor& a, Scalar b);
/// 0 where x is negative or NaN, `values` where it is 0, else 1; without gradients. Throws Error for two dtypes.
Tensor heaviside(const Tensor& x, const Tensor& values);
/// a log(b), and 0 where a is 0, unless b is NaN.
Tensor xlogy(const Tensor& a, const Tensor& b);
/// a + weight (b - a).
Tensor lerp(const Tensor& a, const Tensor& b, double weight);
Tensor lerp(const Tensor& a, const Tensor& b, const Tensor& weight);

/// log(exp(a) + exp(b)), without overflow.
Tensor logaddexp(const Tensor& a, const Tensor& b);
/// x + value a b, and x + value a / b, in the dtype of all three; half types are computed in float32 and rounded once.
Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1.0);
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value = 1.0);
/// div() rounded downwards.
Tensor floor_divide(const Tensor& a, const Tensor& b);
Tensor floor_divide(const Tensor& a, Scalar b);
/// remainder(a, b).
Tensor operator%(const Tensor& a, const Tensor& b);
Tensor operator%(const Tensor& a, Scalar b);
/// Logic of what is not 0: bool tensors.
Tensor logical_not(const Tensor& x);
Tensor logical_and(const Tensor& a, const Tensor& b);
Tensor logical_or(const Tensor& a, const Tensor& b);
Tensor logical_xor(const Tensor& a, const Tensor& b);
/// logical_not().
inline Tensor operator!(const Tensor& x) {
  return logical_not(x);
}
/// Logic of each bit of integers, which promote, and of bool tensors. Throw Error for other dtypes.
Tensor bitwise_not(const Tensor& x);
Tensor bitwise_and(const Tensor& a, const Tensor& b);
Tensor bitwise_and(const Tensor& a, Scalar b);
Tensor bitwise_or(const Tensor& a, const Tensor& b);
Tensor bitwise_or(const Tensor& a, Scalar b);
Tensor bitwise_xor(const Tensor& a, const Tensor& b);
Tensor bitwise_xor(const Tensor& a, Scalar b);
/// Integers times 2^b, without what is above their highest bit, and divided by it and rounded downwards. Negative
/// counts, and those that no bit is left of, give 0 (to the right of negative numbers -1). Throw Error for other
/// dtypes.
Tensor bitwise_left_shift(const Tensor& a, const Tensor& b);
Tensor bitwise_left_shift(const Tensor& a, Scalar b);
Tensor bitwise_right_shift(const Tensor& a, const Tensor& b);
Tensor bitwise_right_shift(const Tensor& a, Scalar b);
// clang-format off
/// The same as operators.
inline Tensor operator~(const Tensor& x) { return bitwise_not(x); }
inline Tensor operator&(const Tensor& a, const Tensor& b) { return bitwise_and(a, b); }
inline Tensor operator&(const Tensor& a, Scalar b) { return bitwise_and(a, b); }
inline Tensor operator|(const Tensor& a, const Tensor& b) { return bitwise_or(a, b); }
inline Tensor operator|(const Tensor& a, Scalar b) { return bitwise_or(a, b); }
inline Tensor operator^(const Tensor& a, const Tensor& b) { return bitwise_xor(a, b); }
inline Tensor operator^(const Tensor& a, Scalar b) { return bitwise_xor(a, b); }
inline Tensor operator<<(const Tensor& a, const Tensor& b) { return bitwise_left_shift(a, b); }
inline Tensor operator<<(const Tensor& a, Scalar b) { return bitwise_left_shift(a, b); }
inline Tensor operator>>(const Tensor& a, const Tensor& b) { return bitwise_right_shift(a, b); }
inline Tensor operator>>(const Tensor& a, Scalar b) { return bitwise_right_shift(a, b); }
// clang-format on

/// Whether shapes and all values are equal. Waits for the device.
bool equal(const Tensor& a, const Tensor& b);
/// Which elements have |a - b| <= atol + rtol |b|, or are equal; NaN equals nothing unless `equal_nan`. Bool.
Tensor isclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);
/// Whether |a - b| <= atol + rtol |b| everywhere; NaN equals nothing unless `equal_nan`. Waits for the device.
bool allclose(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8, bool equal_nan = false);

}  // namespace lockstep
