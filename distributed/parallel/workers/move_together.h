#pragma once

#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::distributed {

/// move_values() for each tensor (one may be undefined, and stays so), but those of one dtype travel from one device to
/// another as one packed copy: between devices each copy costs several events and a transfer of its own. What has
/// travelled with others is a view of what came.
std::vector<Tensor> move_together(const std::vector<Tensor>& tensors, Device device);

}  // namespace lockstep::distributed
