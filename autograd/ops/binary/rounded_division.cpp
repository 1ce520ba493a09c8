#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {
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

  binary::Form forms[2];
  Device device;
};

Tensor rounded_division(const Operand& a, const Operand& b, RoundingMode rounding) {
  binary::check_operands(a, b, "div");
  const DType dtype = binary::promote(a, b);
  LOCKSTEP_CHECK(dtype != kBool, "[div] a rounded quotient is not defined for bool operands; convert one of them");
  if (!is_floating_point(dtype)) {
    const bool by_zero =
        b.tensor ? b.tensor->device().is_cpu() && any(*b.tensor == 0).item<bool>() : b.scalar.to_double() == 0.0;
    LOCKSTEP_CHECK(!by_zero,
                   "[div] integers are divided by 0; replace the zeros, or convert to a floating-point dtype");
  }
  Tensor out =
      binary::compute(rounding == RoundingMode::trunc ? BinaryOp::div_trunc : BinaryOp::div_floor, a, b, 1.0, "div");
  if (!is_floating_point(dtype)) return out;
  const Tensor none;
  if (auto* node = record<RoundedDivBackward>(out, {a.tensor ? a.tensor : &none, b.tensor ? b.tensor : &none})) {
    if (a.tensor) node->forms[0] = binary::Form(*a.tensor);
    if (b.tensor) node->forms[1] = binary::Form(*b.tensor);
    node->device = out.device();
  }
  return out;
}

}  // namespace

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
