#pragma once

#include <concepts>
#include <optional>
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

/// The same by the arguments of libtorch; `retain_graph` may be std::nullopt, which is create_graph.
template <typename Flag>
requires(std::same_as<Flag, bool> || std::same_as<Flag, std::nullopt_t> ||
         std::same_as<Flag, std::optional<bool>>) std::vector<Tensor> grad(const std::vector<Tensor>& roots,
                                                                           const std::vector<Tensor>& inputs,
                                                                           const std::vector<Tensor>& gradients,
                                                                           Flag retain_graph, bool create_graph = false,
                                                                           bool allow_unused = false) {
  const bool retain = std::optional<bool>(retain_graph).value_or(create_graph);
  return grad(roots, inputs, gradients,
              GradOptions{.retain_graph = retain, .allow_unused = allow_unused, .create_graph = create_graph});
}

/// libtorch's names.
namespace autograd {
using lockstep::backward;
using lockstep::grad;
}  // namespace autograd

}  // namespace lockstep
