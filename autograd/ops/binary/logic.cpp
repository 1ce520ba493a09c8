#include <limits>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

Tensor truth(const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  return x.dtype() == kBool ? x : ne(x, 0);
}

/// Of integers, and of bool values, which as numbers are 0 and 1, on which the operations are logic.
Tensor of_bits(BinaryOp op, const Operand& a, const Operand& b, const char* op_name) {
  if (a.tensor && b.tensor && binary::are_apart(*a.tensor, *b.tensor)) [[unlikely]]
    return of_bits(op, binary::beside(*a.tensor, *b.tensor), binary::beside(*b.tensor, *a.tensor), op_name);
  binary::check_operands(a, b, op_name);
  const DType dtype = binary::promote(a, b);
  LOCKSTEP_CHECK(!is_floating_point(dtype),
                 "[{}] expected bool or integer tensors, found {}; compare first, or use the logical_ functions",
                 op_name, name(dtype));
  return binary::compute(op, a, b, 1.0, op_name);
}

Tensor shifted(BinaryOp op, const Operand& a, const Operand& b, const char* op_name) {
  if (a.tensor && b.tensor && binary::are_apart(*a.tensor, *b.tensor)) [[unlikely]]
    return shifted(op, binary::beside(*a.tensor, *b.tensor), binary::beside(*b.tensor, *a.tensor), op_name);
  binary::check_operands(a, b, op_name);
  LOCKSTEP_CHECK(binary::promote(a, b) != kBool, "[{}] is not defined for bool tensors", op_name);
  return of_bits(op, a, b, op_name);
}

}  // namespace

Tensor logical_not(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[logical_not] the tensor is undefined");
  return eq(x, x.dtype() == kBool ? Scalar(false) : Scalar(0));
}
Tensor logical_and(const Tensor& a, const Tensor& b) {
  return truth(a, "logical_and") * truth(b, "logical_and");
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  return truth(a, "logical_or") + truth(b, "logical_or");
}
Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return ne(truth(a, "logical_xor"), truth(b, "logical_xor"));
}
Tensor bitwise_not(const Tensor& x) {
  if (x.defined() && x.dtype() == kBool) return logical_not(x);
  return of_bits(BinaryOp::bit_xor, x, Scalar(-1), "bitwise_not");
}
Tensor bitwise_and(const Tensor& a, const Tensor& b) {
  return of_bits(BinaryOp::bit_and, a, b, "bitwise_and");
}
Tensor bitwise_and(const Tensor& a, Scalar b) {
  return of_bits(BinaryOp::bit_and, a, b, "bitwise_and");
}
Tensor bitwise_or(const Tensor& a, const Tensor& b) {
  return of_bits(BinaryOp::bit_or, a, b, "bitwise_or");
}
Tensor bitwise_or(const Tensor& a, Scalar b) {
  return of_bits(BinaryOp::bit_or, a, b, "bitwise_or");
}
Tensor bitwise_xor(const Tensor& a, const Tensor& b) {
  return of_bits(BinaryOp::bit_xor, a, b, "bitwise_xor");
}
Tensor bitwise_xor(const Tensor& a, Scalar b) {
  return of_bits(BinaryOp::bit_xor, a, b, "bitwise_xor");
}
Tensor bitwise_left_shift(const Tensor& a, const Tensor& b) {
  return shifted(BinaryOp::shift_left, a, b, "bitwise_left_shift");
}
Tensor bitwise_left_shift(const Tensor& a, Scalar b) {
  return shifted(BinaryOp::shift_left, a, b, "bitwise_left_shift");
}
Tensor bitwise_right_shift(const Tensor& a, const Tensor& b) {
  return shifted(BinaryOp::shift_right, a, b, "bitwise_right_shift");
}
Tensor bitwise_right_shift(const Tensor& a, Scalar b) {
  return shifted(BinaryOp::shift_right, a, b, "bitwise_right_shift");
}

bool equal(const Tensor& a, const Tensor& b) {
  const NoGradGuard values_only;
  return a.sizes() == b.sizes() && all(eq(a, b)).item<bool>();
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  const NoGradGuard values_only;
  Tensor close =
      eq(a, b) + (abs(a - b) <= abs(b) * rtol + atol) * lt(abs(b), Scalar(std::numeric_limits<double>::infinity()));
  if (equal_nan) close = close + ne(a, a) * ne(b, b);
  return all(close).item<bool>();
}

}  // namespace lockstep
