#include "lockstep/autograd/ops/binary/operands.h"

#include <optional>

#include "lockstep/autograd/ops/support/sum_to.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep::binary {

Tensor Form::fit(const Tensor& grad) const {
  if (grad.sizes() == sizes && grad.dtype() == dtype) return grad;
  return cast_values(sum_to(grad, sizes), dtype);
}

Tensor Form::fit(BinaryOp op, const Tensor& grad, const Operand& other) const {
  const bool summed = grad.sizes() != sizes;
  return fit(summed ? compute_wide(op, grad, other) : binary_values(op, grad, other));
}

Tensor Form::fit_recorded(const Tensor& grad) const {
  return (grad.sizes() == sizes ? grad : recorded_sum_to(grad, sizes)).to(dtype);
}

void check_operands(const Operand& a, const Operand& b, const char* op) {
  LOCKSTEP_CHECK((!a.tensor || a.tensor->defined()) && (!b.tensor || b.tensor->defined()),
                 "[{}] an operand is undefined", op);
  LOCKSTEP_CHECK(
      !a.tensor || !b.tensor || a.tensor->device() == b.tensor->device(),
      "[{}] expected both operands on one device, or a number, which may stay on the CPU, found {} and {}; move "
      "one with to()",
      op, to_string(a.tensor->device()), to_string(b.tensor->device()));
}

Tensor beside(const Tensor& x, const Tensor& other) {
  return x.dim() == 0 && x.device().is_cpu() ? x.to(other.device()) : x;
}

namespace {

/// A tensor without dimensions counts as a number does: only its category can change the other's dtype.
DType beside_number(DType dtype, DType number) {
  return is_floating_point(dtype) || (dtype != kBool && !is_floating_point(number)) ? dtype
                                                                                    : promote_types(dtype, number);
}

}  // namespace

DType promote(const Operand& a, const Operand& b) {
  if (!a.tensor) return result_dtype(b.tensor->dtype(), a.scalar);
  if (!b.tensor) return result_dtype(a.tensor->dtype(), b.scalar);
  const DType first = a.tensor->dtype(), second = b.tensor->dtype();
  if (first == second) return first;
  if ((a.tensor->dim() == 0) == (b.tensor->dim() == 0)) return promote_types(first, second);
  return a.tensor->dim() == 0 ? beside_number(second, first) : beside_number(first, second);
}

DType promote(std::initializer_list<const Tensor*> tensors) {
  std::optional<DType> of_tensors, of_numbers;
  for (const Tensor* x : tensors) {
    std::optional<DType>& dtype = x->dim() == 0 ? of_numbers : of_tensors;
    dtype = dtype ? promote_types(*dtype, x->dtype()) : x->dtype();
  }
  if (!of_tensors || !of_numbers) return of_tensors ? *of_tensors : *of_numbers;
  return beside_number(*of_tensors, *of_numbers);
}

Shape result_sizes(const Operand& a, const Operand& b, const char* op) {
  const Tensor& first = a.tensor ? *a.tensor : *b.tensor;
  if (!a.tensor || !b.tensor || b.tensor->sizes() == first.sizes()) return first.sizes();
  return broadcast_shapes(first.sizes(), b.tensor->sizes(), op);
}

}  // namespace lockstep::binary
