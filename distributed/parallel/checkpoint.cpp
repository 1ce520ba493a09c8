#include "lockstep/distributed/parallel/checkpoint.h"

#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/sharding/checkpoint_by_shares.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"

namespace lockstep::distributed {

void save_checkpoint(const std::string& path, const nn::Module& module, optim::Optimizer& optimizer,
                     const nn::TrainingState& state, ProcessGroup& group, const optim::Scheduler* scheduler) {
  std::vector<const optim::Scheduler*> schedulers;
  if (scheduler) schedulers.push_back(scheduler);
  save_checkpoint(path, module, {optimizer}, state, group, schedulers);
}

void save_checkpoint(const std::string& path, const nn::Module& module,
                     const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                     const nn::TrainingState& state, ProcessGroup& group,
                     const std::vector<const optim::Scheduler*>& schedulers) {
  check_optimizers(path, module, optimizers, group);
  const bool whole_on_rank0 = !group.broadcast_object(state.tensors.empty() ? "" : "it has tensors").empty();
  if (!whole_on_rank0 && save_checkpoint_by_shares(path, module, optimizers, state, group, schedulers)) return;
  const WholeParameters whole(module);
  for (optim::Optimizer& optimizer : optimizers)
    if (auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) sharded->consolidate();
  on_rank0(group, [&] {
    nn::save_checkpoint(path, module, {optimizers.begin(), optimizers.end()}, state, schedulers);
  });
}

nn::TrainingState load_checkpoint(const std::string& path, nn::Module& module, optim::Optimizer& optimizer,
                                  ProcessGroup& group, optim::Scheduler* scheduler) {
  std::vector<optim::Scheduler*> schedulers;
  if (scheduler) schedulers.push_back(scheduler);
  return load_checkpoint(path, module, {optimizer}, group, schedulers);
}

nn::TrainingState load_checkpoint(const std::string& path, nn::Module& module,
                                  const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                                  ProcessGroup& group, const std::vector<optim::Scheduler*>& schedulers) {
  const WholeParameters whole(module);
  const Rank0File file(path, group);
  // Each rank reads what it needs of the file, which may be parts of tensors; one looks at all of it.
  on_rank0(group, [&] { file.read([](const std::string& here) { nn::SafetensorsFile(here).verify(); }); });
  nn::TrainingState state;
  file.read([&](const std::string& here) { state = nn::load_checkpoint(here, module, optimizers, schedulers); });
  return state;
}

}  // namespace lockstep::distributed
