// clamp() with bounds that are tensors.

#include "lockstep/autograd/composed_gradients.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

class ClampBackward final : public Node {
 public:
  const char* name() const override { return "ClampBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &x = saved(0), &min = saved(1), &max = saved(2), &grad = grads[0];
    const Tensor half = binary_values(BinaryOp::mul, grad, 0.5), ordered = min < max;
    const Tensor at_min = (x == min) * ordered, at_max = (x == max) * ordered;
    const auto shared = [&](const Tensor& tie, const Tensor& whole) {
      return where(tie, half, where(whole, grad, 0.0));
    };
    TensorList results(3);
    if (needs_grad(0)) results[0] = forms[0].fit(where((x < min) + (x > max), 0.0, where(at_min + at_max, half, grad)));
    if (needs_grad(1)) results[1] = forms[1].fit(shared(at_min, (x < min) * (min <= max)));
    if (needs_grad(2)) results[2] = forms[2].fit(shared(at_max, (max < min) + (x > max) * (min <= max)));
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    return composed_gradients([](const std::vector<Tensor>& in) { return minimum(maximum(in[0], in[1]), in[2]); },
                              {saved_input(0, 0), saved_input(1, 1), saved_input(2, 2)}, grads[0]);
  }

  binary::Form forms[3];
};

}  // namespace

Tensor clamp(const Tensor& x, const Tensor& min, const Tensor& max) {
  LOCKSTEP_CHECK(x.defined(), "[clamp] the tensor is undefined");
  LOCKSTEP_CHECK(min.defined() || max.defined(), "[clamp] expected at least one bound");
  if (!max.defined()) return maximum(x, min);
  if (!min.defined()) return minimum(x, max);
  const Tensor raised = binary::compute(BinaryOp::maximum, x, min, 1.0, "clamp");
  Tensor out = binary::compute(BinaryOp::minimum, raised, max, 1.0, "clamp");
  if (auto* node = record<ClampBackward>(out, {&x, &min, &max})) {
    node->save(x, min, max);
    node->forms[0] = binary::Form(x);
    node->forms[1] = binary::Form(min);
    node->forms[2] = binary::Form(max);
  }
  return out;
}

Tensor Tensor::clamp(const Tensor& min, const Tensor& max) const {
  return lockstep::clamp(*this, min, max);
}

}  // namespace lockstep
