#include "lockstep/distributed/parallel/checkpoint.h"

#include "lockstep/core/check.h"
#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/sharding/checkpoint_by_shares.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::distributed {
namespace {

// A checkpoint is one for all ranks.
void check_shared(const char* function, const nn::Module& module, const ProcessGroup& group) {
  LOCKSTEP_CHECK(
      group.world_size() == 1 ||
          !optim::detail::has_gradients_of(module.parameters(), optim::detail::GradientsInParts::Kind::own),
      "[{}] the model has modules that are each rank's own (ignored_modules), and one checkpoint would give all ranks "
      "rank 0's; save and load the model of each rank by nn::save_checkpoint() and nn::load_checkpoint(), in a file of "
      "its own",
      function);
}

}  // namespace

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
  check_shared("save_checkpoint", module, group);
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
  check_shared("load_checkpoint", module, group);
  const WholeParameters whole(module);
  const Rank0File file(path, group);
  // Each rank reads what it needs of the file, which may be parts of tensors; one looks at all of it.
  on_rank0(group, [&] { file.read([](const std::string& here) { nn::SafetensorsFile(here).verify(); }); });
  nn::TrainingState state;
  file.read([&](const std::string& here) { state = nn::load_checkpoint(here, module, optimizers, schedulers); });
  return state;
}

}  // namespace lockstep::distributed
