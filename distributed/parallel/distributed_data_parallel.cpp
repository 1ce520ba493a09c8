#include "lockstep/distributed/parallel/distributed_data_parallel.h"

#include "lockstep/core/check.h"
#include "lockstep/distributed/parallel/workers/ranks.h"

namespace lockstep::distributed {
namespace {

TrainingStepOptions with_group(TrainingStepOptions options, ProcessGroupPtr group) {
  LOCKSTEP_CHECK(group, "[DistributedDataParallel] the process group is null");
  options.group = std::move(group);
  return options;
}

}  // namespace

DistributedDataParallel::DistributedDataParallel(nn::Module& module, ProcessGroupPtr group, TrainingStepOptions options)
    : step_(module, with_group(std::move(options), std::move(group))) {}

DistributedDataParallel::DistributedDataParallel(nn::Module& module, const Job& job, TrainingStepOptions options)
    : DistributedDataParallel(module, job.process_group(), std::move(options)) {}

void DistributedDataParallel::join(const std::function<void()>& loop, const std::function<void()>& keep_up) {
  step_.ranks_->join(loop, keep_up);
}

void DistributedDataParallel::forward_by(const std::function<bool()>& compute) {
  step_.ranks_->forward(compute, std::nullopt);
}

NoSync DistributedDataParallel::no_sync() {
  check_not_lockstep(is_lockstep(), "no_sync()");
  return NoSync(step_.ranks_->reducer());
}

ProcessGroup& DistributedDataParallel::process_group() {
  return step_.ranks_->group();
}

std::vector<std::string> DistributedDataParallel::unused_parameters() const {
  return step_.ranks_->reducer().unused_parameters();
}

std::vector<std::string> DistributedDataParallel::unused_everywhere() const {
  return step_.ranks_->reducer().unused_everywhere();
}

}  // namespace lockstep::distributed
