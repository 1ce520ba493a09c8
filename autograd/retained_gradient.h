#pragma once

#include <cstdint>
#include <memory>
#include <mutex>

#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// Where Tensor::retain_grad() collects the gradient of a result.
struct RetainedGradient {
  std::mutex mutex;  ///< passes of several threads may add to it, as to a leaf's
  Tensor gradient;   ///< undefined before the first
};

/// The hook of Tensor::retain_grad(), which adds up gradients in `slot`, as other hooks leave them.
Node::GradientHook collect_in(std::shared_ptr<RetainedGradient> slot, std::uint64_t key, std::uint32_t output);

}  // namespace lockstep::detail
