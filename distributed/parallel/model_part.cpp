#include "lockstep/distributed/parallel/model_part.h"

#include "lockstep/distributed/parallel/workers/shared_state.h"

namespace lockstep::distributed {

std::vector<nn::NamedTensor> reduced_parameters(const nn::Module& module, const TrainingStepOptions& options) {
  if (!options.model_part) {
    std::vector<nn::NamedTensor> trained = shared_state(module, options).parameters;
    std::erase_if(trained, [](const nn::NamedTensor& each) { return !each.tensor.requires_grad(); });
    return trained;
  }
  std::vector<nn::NamedTensor> all;
  for (const std::vector<nn::NamedTensor>& list : options.model_part->trained())
    all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace lockstep::distributed
