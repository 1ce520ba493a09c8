#pragma once

#include <utility>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Evaluation mode of a module, and all below it, for its lifetime; then each is in the mode that it was in before, so
/// that a layer which was frozen by eval() stays so.
class [[nodiscard]] EvalGuard {
 public:
  /// Of a module that outlives this object and gets or loses no modules meanwhile.
  explicit EvalGuard(Module& module) {
    for (Module* each : module.modules()) modes_.emplace_back(each, each->is_training());
    module.eval();
  }
  ~EvalGuard() {
    for (const auto& [module, training] : modes_)  // those below come later
      if (module->is_training() != training) module->train(training);
  }
  EvalGuard(const EvalGuard&) = delete;
  EvalGuard& operator=(const EvalGuard&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> modes_;
};

}  // namespace lockstep::nn
