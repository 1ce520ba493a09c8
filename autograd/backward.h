#pragma once

#include <span>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Adds the gradients of several tensors at once to the leaves' grad(), as Tensor::backward() does for one: each of
/// `roots` is seeded with one of `gradients`, of its shape, dtype and device. Throws Error for another number of them,
/// or for a root that requires no gradients. torch.autograd.backward.
void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, bool retain_graph = false);

/// What grad() does beside computing gradients.
struct GradOptions {
  bool retain_graph = false;  ///< keep the graph, for another pass
  bool allow_unused = false;  ///< the gradient of an input that no root depends on is undefined, not an Error
  bool create_graph = false;  ///< the gradients are functions of the inputs again; the graph is kept
};

/// The gradients of the sum of `roots` with respect to `inputs`, leaves or results of operations: one for each input,
/// of its shape. No tensor's grad() changes, and what leads to none of the inputs is not computed. `gradients` seeds
/// the roots; left out, each of them must have one element and is seeded with 1. Throws Error for an input that
/// requires no gradients. With create_graph, for gradient penalties and second derivatives, each operation on the way
/// must have a second derivative: else Error, naming it. torch.autograd.grad.
std::vector<Tensor> grad(const std::vector<Tensor>& roots, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients = {}, GradOptions options = {});

}  // namespace lockstep
