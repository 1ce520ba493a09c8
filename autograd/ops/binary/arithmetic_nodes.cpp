#include "lockstep/autograd/ops/binary/arithmetic_nodes.h"

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/unary/unary.h"

namespace lockstep::binary {

TensorList AddBackward::apply(TensorList grads) {
  TensorList results(2);
  if (needs_grad(0)) results[0] = a.fit(grads[0]);
  if (needs_grad(1)) {
    results[1] = b.fit(grads[0]);
    if (alpha != 1.0) results[1] = binary_values(BinaryOp::mul, results[1], alpha);
  }
  return results;
}

TensorList AddBackward::apply_recorded(TensorList grads) {
  TensorList results(2);
  if (needs_grad(0)) results[0] = a.fit_recorded(grads[0]);
  if (needs_grad(1)) results[1] = b.fit_recorded(grads[0]) * alpha;
  return results;
}

TensorList MulBackward::apply(TensorList grads) {
  const Tensor &a = saved(0), &b = saved(1);
  TensorList results(2);
  if (needs_grad(0)) results[0] = form_a.fit(BinaryOp::mul, grads[0], b);
  if (needs_grad(1)) results[1] = form_b.fit(BinaryOp::mul, grads[0], a);
  return results;
}

TensorList MulBackward::apply_recorded(TensorList grads) {
  TensorList results(2);
  if (needs_grad(0)) results[0] = form_a.fit_recorded(grads[0] * saved_input(1, 1));
  if (needs_grad(1)) results[1] = form_b.fit_recorded(grads[0] * saved_input(0, 0));
  return results;
}

TensorList LerpBackward::apply(TensorList grads) {
  TensorList results(2);
  if (needs_grad(0)) results[0] = a.fit(BinaryOp::mul, grads[0], 1.0 - weight);
  if (needs_grad(1)) results[1] = b.fit(BinaryOp::mul, grads[0], weight);
  return results;
}

TensorList LerpBackward::apply_recorded(TensorList grads) {
  TensorList results(2);
  if (needs_grad(0)) results[0] = a.fit_recorded(grads[0] * (1.0 - weight));
  if (needs_grad(1)) results[1] = b.fit_recorded(grads[0] * weight);
  return results;
}

TensorList MulScalarBackward::apply(TensorList grads) {
  return {binary_values(BinaryOp::mul, grads[0], factor)};
}

TensorList MulScalarBackward::apply_recorded(TensorList grads) {
  return {grads[0] * factor};
}

TensorList DivBackward::apply(TensorList grads) {
  const Tensor &a = saved(0), &b = saved(1);
  const Operand divisor = b.defined() ? Operand(b) : Operand(scalar_b);
  TensorList results(2);
  if (needs_grad(0)) results[0] = form_a.fit(BinaryOp::div, grads[0], divisor);
  if (needs_grad(1)) {
    const Operand dividend = a.defined() ? Operand(a) : Operand(scalar_a);
    const Tensor factor = compute_wide(BinaryOp::div_by_other, dividend, divisor);
    results[1] = form_b.fit(BinaryOp::mul, grads[0], factor);
  }
  return results;
}

TensorList DivBackward::apply_recorded(TensorList grads) {
  const bool by_number = !saved(1).defined();
  const Tensor quotient = by_number ? grads[0] / scalar_b : grads[0] / saved_input(1, 1);
  TensorList results(2);
  if (needs_grad(0)) results[0] = form_a.fit_recorded(quotient);
  if (needs_grad(1)) {
    const Tensor slope = -quotient / saved_input(1, 1);
    results[1] = form_b.fit_recorded(saved(0).defined() ? slope * saved_input(0, 0) : slope * scalar_a);
  }
  return results;
}

}  // namespace lockstep::binary
