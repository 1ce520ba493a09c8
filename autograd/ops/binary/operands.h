#pragma once

// Checks and results that the files of this folder share.

#include <initializer_list>

#include "lockstep/autograd/ops/binary/binary_kernels.h"

namespace lockstep::binary {

/// Shape, dtype and device of a tensor, kept for backward.
struct Form {
  Shape sizes;
  DType dtype = kFloat32;

  Form() = default;
  explicit Form(const Tensor& tensor) : sizes(tensor.sizes()), dtype(tensor.dtype()) {}
  /// `grad` summed down and cast to this form.
  Tensor fit(const Tensor& grad) const;
  /// The same for op(grad, other), whose terms are rounded to a half type only after they were summed.
  Tensor fit(BinaryOp op, const Tensor& grad, const Operand& other) const;
  /// fit() as recorded operations.
  Tensor fit_recorded(const Tensor& grad) const;
};

/// Throws Error naming `op` if an operand is undefined or the tensors are on different devices.
void check_operands(const Operand& a, const Operand& b, const char* op);
/// Whether one of two operands lies on the CPU, has no dimensions and so counts as a number, and the other is on
/// another device: an operation then takes both beside() each other. Of tensors that may be undefined.
inline bool are_apart(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || a.device() == b.device()) return false;
  return (a.dim() == 0 && a.device().is_cpu()) || (b.dim() == 0 && b.device().is_cpu());
}
/// `x`, if it counts as a number a copy on the other's device, which is recorded. Elsewhere x.
Tensor beside(const Tensor& x, const Tensor& other);
/// The promoted dtype of both, as torch.result_type: a tensor without dimensions counts like a number beside one that
/// has some, so that float16 [3] times a float32 scalar tensor stays float16.
DType promote(const Operand& a, const Operand& b);
/// The same of several tensors at once: those with dimensions count before those without.
DType promote(std::initializer_list<const Tensor*> tensors);
/// The shape that both broadcast to.
Shape result_sizes(const Operand& a, const Operand& b, const char* op);

/// A new tensor op(a, b), recording nothing. Errors name `op_name`.
Tensor compute(BinaryOp op, const Operand& a, const Operand& b, double alpha, const char* op_name);
/// The same for backward functions, in float32 where compute() would give a half type.
Tensor compute_wide(BinaryOp op, const Operand& a, const Operand& b);

/// Writes x + value op(a, b) into x in one pass, where op is mul or div; errors name `name`. False, with nothing
/// written, for what it does not serve: what is recorded, other devices than one CPU, and results that are not
/// floating-point numbers of x's dtype and shape.
bool add_term_in_place(BinaryOp op, const Tensor& x, const Tensor& a, const Tensor& b, double value, const char* name);

}  // namespace lockstep::binary
