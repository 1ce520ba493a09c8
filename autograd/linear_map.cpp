#include "lockstep/autograd/linear_map.h"

#include <utility>

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/factories.h"

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

class FlatBackward final : public Node {
 public:
  const char* name() const override { return "FlatBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList results{grads[0], Tensor()};
    if (needs_grad(1)) results[1] = zeros(sizes, options);
    return results;
  }
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }

  Shape sizes;
  TensorOptions options;
};

}  // namespace

Tensor flat_in(const Tensor& value, const Tensor& input) {
  const Tensor out = value.detach();
  if (auto* node = record<FlatBackward>(out, {&value, &input})) {
    node->sizes = input.sizes();
    node->options = options_of(input);
  }
  return out;
}

Tensor flat_in(const Tensor& value, const Edge& edge, const Shape& sizes) {
  Tensor input;
  {
    const NoGradGuard values_only;
    input = zeros({}, options_of(value)).expand(sizes);
  }
  AutogradMeta& meta = ensure_autograd_meta(input);
  meta.grad_fn = edge.node;
  meta.output_index = edge.input;
  return flat_in(value, input);
}

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
