#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {

using binary::Form;

namespace {

/// Steps have no slope.
class RoundedDivBackward final : public Node {
 public:
  const char* name() const override { return "RoundedDivBackward"; }
  TensorList apply(TensorList) override {
    TensorList results(2);
    for (std::size_t i = 0; i < 2; ++i)
      if (needs_grad(i)) results[i] = zeros(forms[i].sizes, {.dtype = forms[i].dtype, .device = device});
    return results;
  }
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }

  Form forms[2];
  Device device;
};

class RemainderBackward final : public Node {
 public:
  const char* name() const override { return "RemainderBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList results(2);
    if (!grads[0].defined()) return results;
    if (needs_grad(0)) results[0] = form_a.fit(grads[0]);
    if (needs_grad(1)) {
      const Tensor quotient = binary::compute_wide(this->quotient, saved(0), saved(1));
      results[1] = form_b.fit(BinaryOp::mul, binary::compute_wide(BinaryOp::mul, grads[0], Scalar(-1.0)), quotient);
    }
    return results;
  }

  TensorList apply_recorded(TensorList grads) override {
    TensorList results(2);
    if (needs_grad(0)) results[0] = form_a.fit_recorded(grads[0]);
    if (needs_grad(1)) {
      const Tensor steps = binary::compute_wide(quotient, saved(0), saved(1));
      results[1] = form_b.fit_recorded(-(grads[0] * flat_in(flat_in(steps, saved_input(0, 0)), saved_input(1, 1))));
    }
    return results;
  }

  Form form_a, form_b;
  BinaryOp quotient = BinaryOp::div_floor;  ///< rounded as the remainder's
};

/// Throws Error naming `op` for bool operands and for integers divided by 0.
DType check_divisor(const Operand& a, const Operand& b, const char* op, const char* what) {
  binary::check_operands(a, b, op);
  const DType dtype = binary::promote(a, b);
  LOCKSTEP_CHECK(dtype != kBool, "[{}] a {} is not defined for bool operands; convert one of them", op, what);
  if (!is_floating_point(dtype)) {
    const bool by_zero =
        b.tensor ? b.tensor->device().is_cpu() && any(*b.tensor == 0).item<bool>() : b.scalar.to_double() == 0.0;
    LOCKSTEP_CHECK(!by_zero, "[{}] integers are divided by 0; replace the zeros, or convert to a floating-point dtype",
                   op);
  }
  return dtype;
}

Tensor rounded_division(const Operand& a, const Operand& b, RoundingMode rounding) {
  if (a.tensor && b.tensor && binary::are_apart(*a.tensor, *b.tensor)) [[unlikely]]
    return rounded_division(binary::beside(*a.tensor, *b.tensor), binary::beside(*b.tensor, *a.tensor), rounding);
  const DType dtype = check_divisor(a, b, "div", "rounded quotient");
  Tensor out =
      binary::compute(rounding == RoundingMode::trunc ? BinaryOp::div_trunc : BinaryOp::div_floor, a, b, 1.0, "div");
  if (!is_floating_point(dtype)) return out;
  const Tensor none;
  if (auto* node = record<RoundedDivBackward>(out, {a.tensor ? a.tensor : &none, b.tensor ? b.tensor : &none})) {
    if (a.tensor) node->forms[0] = Form(*a.tensor);
    if (b.tensor) node->forms[1] = Form(*b.tensor);
    node->device = out.device();
  }
  return out;
}

Tensor remaining(const Tensor& a, const Operand& b, BinaryOp op, const char* name) {
  if (b.tensor && binary::are_apart(a, *b.tensor)) [[unlikely]]
    return remaining(binary::beside(a, *b.tensor), binary::beside(*b.tensor, a), op, name);
  check_divisor(a, b, name, "remainder");
  Tensor out = binary::compute(op, a, b, 1.0, name);
  const Tensor none;
  if (auto* node = record<RemainderBackward>(out, {&a, b.tensor ? b.tensor : &none})) {
    node->form_a = Form(a);
    node->quotient = op == BinaryOp::remainder ? BinaryOp::div_floor : BinaryOp::div_trunc;
    if (b.tensor) {
      node->form_b = Form(*b.tensor);
      node->save(a, *b.tensor);
    }
  }
  return out;
}

}  // namespace

Tensor remainder(const Tensor& a, const Tensor& b) {
  return remaining(a, b, BinaryOp::remainder, "remainder");
}
Tensor remainder(const Tensor& a, Scalar b) {
  return remaining(a, b, BinaryOp::remainder, "remainder");
}
Tensor fmod(const Tensor& a, const Tensor& b) {
  return remaining(a, b, BinaryOp::fmod, "fmod");
}
Tensor fmod(const Tensor& a, Scalar b) {
  return remaining(a, b, BinaryOp::fmod, "fmod");
}

Tensor div(const Tensor& a, const Tensor& b, RoundingMode rounding) {
  return rounded_division(a, b, rounding);
}
Tensor div(const Tensor& a, Scalar b, RoundingMode rounding) {
  return rounded_division(a, b, rounding);
}
Tensor div(Scalar a, const Tensor& b, RoundingMode rounding) {
  return rounded_division(a, b, rounding);
}

}  // namespace lockstep
