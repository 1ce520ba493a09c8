#pragma once

#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// What of a module is to be the same on all ranks, and what is each rank's own: TrainingStepOptions::ignored_modules.
struct SharedState {
  nn::NamedTensors parameters;  ///< frozen ones too
  nn::NamedTensors buffers;
  std::vector<Tensor> own_parameters;

  /// The shared parameters and buffers, in the order in which ranks exchange them.
  std::vector<Tensor> tensors() const;
};

/// Of a module whose options have been checked. A tensor that a shared and an ignored module hold goes by its first
/// name.
SharedState shared_state(const nn::Module& module, const TrainingStepOptions& options);

}  // namespace lockstep::distributed
