#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// The hook of Tensor::retain_grad(), which adds up gradients in `slot`, as other hooks leave them.
Node::GradientHook collect_in(std::shared_ptr<Tensor> slot, std::uint64_t key, std::uint32_t output);

}  // namespace lockstep::detail
