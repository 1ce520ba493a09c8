#include "lockstep/autograd/linear_map.h"

#include <utility>

#include "lockstep/autograd/record.h"

namespace lockstep {
namespace {

class LinearMapBackward final : public Node {
 public:
  const char* name() const override { return "LinearMapBackward"; }
  TensorList apply(TensorList grads) override { return {linear.transposed(grads[0])}; }
  TensorList apply_recorded(TensorList grads) override {
    return {apply_linear(grads[0], {linear.transposed, linear.map})};
  }

  LinearMap linear;
};

}  // namespace

Tensor apply_linear(const Tensor& x, LinearMap linear) {
  Tensor out;
  {
    const NoGradGuard values_only;
    out = linear.map(x);
  }
  if (out.is_same(x)) out = x.detach();
  if (auto* node = record<LinearMapBackward>(out, {&x})) node->linear = std::move(linear);
  return out;
}

}  // namespace lockstep
