#pragma once

#include <functional>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// What `module` computes of x, but for backward only x is kept: what the module's operations would have saved is
/// computed once more then. Chen et al., "Training deep nets with sublinear memory cost" (2016); PyTorch's
/// torch.utils.checkpoint. Values and gradients have the bits that they have without, since random numbers are drawn
/// from the same keys (Note [Random keys]) and autocasting is as it was. `function`, if given, is called instead of
/// module.forward(); gradients go to x and to the parameters of `module`, and to no other tensors.
///
/// The module must outlive the graph, must compute the same thing each time (batch norm's running statistics would be
/// updated twice), and its parameters must not change in between, which throws Error in backward().
Tensor recompute(Module& module, const Tensor& x, std::function<Tensor(const Tensor&)> function = {});

}  // namespace lockstep::nn
