#pragma once

// What the reductions ask of a device.

#include <cstdint>

#include "lockstep/core/kernel_table.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

enum class ReduceOp : std::uint8_t {
  sum,                 ///< sum(x) / divisor
  squared_difference,  ///< sum((x - about)^2) / divisor; without `about` it is 0
  log_sum_exp,         ///< about + log(sum(exp(x - about))); an infinite `about` counts as 0
  max,                 ///< NaN if any element is
  min,
};

/// What tells the operations apart in a profile.
inline const char* profile_label(ReduceOp op) {
  constexpr const char* kLabels[] = {"sum", "squared_difference", "log_sum_exp", "max", "min"};
  return kLabels[static_cast<int>(op)];
}

/// Reduces x to `out`: contiguous, of x's number of dimensions, with size 1 where x is reduced. `about`, if the
/// operation has one, has out's shape, is contiguous, and is of out's dtype. Sums of integers go to int64; the other
/// operations keep the dtype, except that out may be float32 for float16 and bfloat16.
using ReduceKernel = void(ReduceOp op, const Tensor& x, const Tensor* about, double divisor, const Tensor& out);
ReduceKernel reduce_cpu, reduce_cuda;

/// The same of a pending x, piece by piece as its expression is computed (Note [Elementwise chains]). False, with
/// nothing done, if x is none or its terms do not come in an order that suits the reduction.
bool reduce_elements(ReduceOp op, const Tensor& x, const Tensor* about, double divisor, const Tensor& out);

/// out (int64, as above) = the index along dimension `dim` of the first maximum (or minimum); NaN counts as both.
using ArgReduceKernel = void(bool maximum, const Tensor& x, int dim, const Tensor& out);
ArgReduceKernel arg_reduce_cpu, arg_reduce_cuda;

/// The gradient of y, the maxima or minima of each `length` elements of x, which lie `inner` apart: x and out are
/// [n, length, inner], y and grad [n, inner], all contiguous and either float32 or float64. The elements equal to y
/// share it, others get 0 times their share, which is NaN where none is equal; NaNs are equal if `nan_too`.
using ExtremeGradientKernel = void(const Tensor& x, const Tensor& y, const Tensor& grad, const Tensor& out,
                                   std::int64_t length, std::int64_t inner, bool nan_too);
ExtremeGradientKernel extreme_gradient_cpu;

/// sum(square(x), dims, keepdim) of floating-point x with its bits, in one pass. Records nothing.
Tensor sum_of_squares(const Tensor& x, const Shape& dims, bool keepdim);

/// ReduceOp::sum on the device of x.
void reduce_sum(const Tensor& x, const Tensor& out);

}  // namespace lockstep
