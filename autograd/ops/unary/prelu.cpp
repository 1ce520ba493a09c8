#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

class PreluBackward final : public Node {
 public:
  const char* name() const override { return "PreluBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &x = saved(0), &weight = saved(1);
    TensorList results(2);
    if (needs_grad(0))
      results[0] = input.fit(BinaryOp::mul, grads[0], binary::compute_wide(BinaryOp::prelu_by_input, x, weight));
    if (needs_grad(1)) results[1] = factors.fit(BinaryOp::prelu_by_weight, grads[0], x);
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0), weight = saved_input(1, 1), above = x > 0.0;
    TensorList results(2);
    if (needs_grad(0)) results[0] = input.fit_recorded(grads[0] * where(above, 1.0, weight));
    if (needs_grad(1)) results[1] = factors.fit_recorded(where(above, 0.0, grads[0] * x));
    return results;
  }

  binary::Form input, factors;
};

/// weight broadcasts to x.
Tensor with_factors(const Tensor& x, const Tensor& weight) {
  const Tensor out = binary::compute(BinaryOp::prelu, x, weight, 1.0, "prelu");
  if (auto* node = record<PreluBackward>(out, {&x, &weight})) {
    node->save(x, weight);
    node->input = binary::Form(x);
    node->factors = binary::Form(weight);
  }
  return out;
}

}  // namespace

Tensor prelu(const Tensor& x, const Tensor& weight) {
  LOCKSTEP_CHECK(x.defined() && weight.defined() && weight.dim() <= 1,
                 "[prelu] expected x and a weight of one dimension");
  LOCKSTEP_CHECK(weight.is_floating_point(), "[prelu] expected a floating-point weight, found {}",
                 name(weight.dtype()));
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([](const auto&... t) { return prelu(t...); }, x, weight);
  if (weight.numel() == 1) return with_factors(x, weight.reshape(Shape::filled(x.dim(), 1)));
  LOCKSTEP_CHECK(x.dim() >= 2 && x.size(1) == weight.numel(), "[prelu] expected {} channels, found x of sizes {}",
                 weight.numel(), to_string(x.sizes()));
  Shape sizes = Shape::filled(x.dim() - 1, 1);
  sizes[0] = weight.numel();
  return with_factors(x, weight.view(sizes));
}

}  // namespace lockstep
