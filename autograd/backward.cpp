#include "lockstep/autograd/backward.h"

#include "lockstep/autograd/engine.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {

void backward(std::span<const Tensor> roots, std::span<const Tensor> gradients, bool retain_graph) {
  Engine::backward(roots, gradients, retain_graph);
}

std::vector<Tensor> grad(const std::vector<Tensor>& roots, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients, GradOptions options) {
  std::vector<Tensor> seeds = gradients;
  if (seeds.empty())
    for (std::size_t i = 0; i < roots.size(); ++i) {
      LOCKSTEP_CHECK(roots[i].defined(), "[grad] root {} is undefined", i);
      LOCKSTEP_CHECK(
          roots[i].numel() == 1,
          "[grad] a gradient must be given for root {}, of shape {}; it may be left out for one element only", i,
          to_string(roots[i].sizes()));
      seeds.push_back(ones_like(roots[i]));
    }
  std::vector<Tensor> results =
      Engine::gradients(roots, seeds, inputs, options.retain_graph, true, options.create_graph);
  for (std::size_t i = 0; i < results.size(); ++i)
    LOCKSTEP_CHECK(results[i].defined() || options.allow_unused,
                   "[grad] no root depends on input {}, of shape {}; pass allow_unused = true to get an undefined "
                   "gradient for it",
                   i, to_string(inputs[i].sizes()));
  return results;
}

}  // namespace lockstep
