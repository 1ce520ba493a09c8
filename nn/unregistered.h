#pragma once

// For .cpp files only.

#include "lockstep/core/tensor.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn::detail {

/// A layer that is a member of a module but was made without `this` and a name computes, and is never trained: its
/// parameters are in nobody's parameters(). Logs one warning if `output`, which `module` computed of `input` (which may
/// be undefined), was computed with tensors that require gradients and are no parameters of `module`. Walks the graph
/// between the two, so call it once for a module.
void warn_of_unregistered(const Tensor& output, const Tensor& input, const Module& module);

}  // namespace lockstep::nn::detail
