#include "lockstep/distributed/parallel/workers/shared_state.h"

#include <algorithm>
#include <utility>

namespace lockstep::distributed {

std::vector<Tensor> SharedState::tensors() const {
  std::vector<Tensor> all = parameters.values();
  for (const nn::NamedTensor& each : buffers) all.push_back(each.tensor);
  return all;
}

SharedState shared_state(const nn::Module& module, const TrainingStepOptions& options) {
  const auto is_own = [&](const nn::NamedTensor& each) {
    return std::ranges::any_of(options.ignored_modules,
                               [&](const std::string& ignored) { return each.name.starts_with(ignored + "."); });
  };
  SharedState state;
  for (nn::NamedTensor& each : module.named_parameters())
    if (is_own(each))
      state.own_parameters.push_back(std::move(each.tensor));
    else
      state.parameters.push_back(std::move(each));
  for (nn::NamedTensor& each : module.named_buffers())
    if (!is_own(each)) state.buffers.push_back(std::move(each));
  return state;
}

}  // namespace lockstep::distributed
