#pragma once

#include <functional>
#include <memory>

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// The hook of Tensor::retain_grad(): adds up gradients in `slot`.
std::function<Tensor(const Tensor&)> collect_in(std::shared_ptr<Tensor> slot);

}  // namespace lockstep::detail
