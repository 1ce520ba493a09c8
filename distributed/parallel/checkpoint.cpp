#include "lockstep/distributed/parallel/checkpoint.h"

#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

namespace lockstep::distributed {

void save_checkpoint(const std::string& path, const nn::Module& module, optim::Optimizer& optimizer,
                     const nn::TrainingState& state, ProcessGroup& group, const optim::LRScheduler* scheduler) {
  if (auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) sharded->consolidate();
  on_rank0(group, [&] { nn::save_checkpoint(path, module, optimizer, state, scheduler); });
}

nn::TrainingState load_checkpoint(const std::string& path, nn::Module& module, optim::Optimizer& optimizer,
                                  ProcessGroup& group, optim::LRScheduler* scheduler) {
  const Rank0File file(path, group);
  nn::TrainingState state;
  file.read([&](const std::string& here) { state = nn::load_checkpoint(here, module, optimizer, scheduler); });
  return state;
}

}  // namespace lockstep::distributed
