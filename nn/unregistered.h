#pragma once

// For .cpp files only.

#include <cstdint>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn::detail {

/// A layer that is a member of a module but was made without `this` and a name computes, and is never trained: its
/// parameters are in nobody's parameters(). Logs one warning if `outputs`, which `module` computed of `inputs` (all
/// of which may be undefined) since Node::take_sequence() gave `began`, were computed with other tensors that require
/// gradients and are no parameters of `module`. Those that require them only since then are what the computation asks
/// slopes for, such as coordinates, and are passed over; so are another model's that an optimizer has. Walks the graph
/// between outputs and inputs, so call it once for a module.
void warn_of_unregistered(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs, std::uint64_t began,
                          const Module& module);

}  // namespace lockstep::nn::detail
