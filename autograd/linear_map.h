#pragma once

#include <functional>
#include <utility>

#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// A linear function of one tensor and its transpose, as functions of values: neither records. For .cpp files only.
struct LinearMap {
  std::function<Tensor(const Tensor&)> map, transposed;
};

/// linear.map(x), recorded: differentiable as often as one likes, since the gradient is the transpose of the gradient.
Tensor apply_linear(const Tensor& x, LinearMap linear);

/// `value`, recorded as a function of `input` too, along which its slope is 0: what a function that is flat in parts
/// gives is computed from its input all the same.
Tensor flat_in(const Tensor& value, const Tensor& input);
/// The same for an input of which `edge`, not empty, and `sizes` are known, but no values.
Tensor flat_in(const Tensor& value, const Edge& edge, const Shape& sizes);

/// A backward function that lives as long as this does, for the functions of a LinearMap.
template <typename N>
class KeptNode {
 public:
  explicit KeptNode(N* node) : owner_(node), node_(node) {}
  N* operator->() const { return node_; }

 private:
  IntrusivePtr<Node> owner_;
  N* node_;
};

/// apply() of a node that keeps no tensors and whose gradient is linear, recorded; `forward` is its operation.
template <typename N>
TensorList applied_linearly(N* node, const Tensor& grad, std::function<Tensor(const Tensor&)> forward) {
  const auto map = [self = KeptNode(node)](const Tensor& g) { return self->apply({g})[0]; };
  return {apply_linear(grad, {map, std::move(forward)})};
}

}  // namespace lockstep
