#pragma once

#include <vector>

#include "lockstep/distributed/parallel/options.h"
#include "lockstep/distributed/parallel/workers/shared_state.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Throws Error on every rank unless what all ranks are to hold of a module has the same names, shapes and dtypes in
/// the same order, and they were given the same options, as far as they decide what the ranks send each other. The
/// message names the ranks that differ from rank 0, and the first difference of one of them. Parameters whose values
/// are lost with a step that has divided them are an Error on all ranks too.
void check_agreement(const SharedState& state, const TrainingStepOptions& options, ProcessGroup& group,
                     const char* who = "TrainingStep");

/// The parameters that did not require gradients when a step was made. Nobody would reduce their gradients.
class FrozenParameters {
 public:
  explicit FrozenParameters(const nn::Module& module);
  /// Throws Error, which names it, if one requires gradients now.
  void check() const;

 private:
  std::vector<nn::NamedTensor> parameters_;
};

}  // namespace lockstep::distributed
