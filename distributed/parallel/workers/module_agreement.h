#pragma once

#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Throws Error on every rank unless all ranks hold a module with the same names, shapes and dtypes in the same order.
/// The message names the ranks that differ from rank 0 and, on those, the first difference.
void check_module_agreement(const nn::Module& module, ProcessGroup& group);

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
