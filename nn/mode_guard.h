#pragma once

#include <utility>
#include <vector>

#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Training or evaluation mode of a module, and all below it, for its lifetime; then each is in the mode that it was in
/// before, so that a layer which was frozen by eval() stays so.
class [[nodiscard]] ModeGuard {
 public:
  /// Of a module that outlives this object and gets or loses no modules meanwhile.
  ModeGuard(Module& module, bool training) {
    for (Module* each : module.modules()) modes_.emplace_back(each, each->is_training());
    module.train(training);
  }
  ~ModeGuard() {
    for (const auto& [module, training] : modes_)  // those below come later
      if (module->is_training() != training) module->train(training);
  }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

 private:
  std::vector<std::pair<Module*, bool>> modes_;
};

}  // namespace lockstep::nn
