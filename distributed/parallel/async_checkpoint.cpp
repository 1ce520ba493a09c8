#include "lockstep/distributed/parallel/async_checkpoint.h"

#include <memory>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/atomic_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/log.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/sharding/checkpoint_by_shares.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/safetensors.h"

namespace lockstep::distributed {

AsyncCheckpoint::AsyncCheckpoint(ProcessGroup& group) : group_(group), own_(group.split(0, group.rank())) {}

AsyncCheckpoint::~AsyncCheckpoint() {
  join();
  if (!failure_) return;
  try {
    std::rethrow_exception(failure_);
  } catch (const std::exception& error) {
    if (group_.rank() == 0) logging::warn("[AsyncCheckpoint] the last checkpoint was not saved: {}", error.what());
  } catch (...) {
    if (group_.rank() == 0)
      logging::warn("[AsyncCheckpoint] the last checkpoint was not saved: an exception that is no std::exception");
  }
}

void AsyncCheckpoint::join() {
  if (thread_.joinable()) thread_.join();
}

void AsyncCheckpoint::wait() {
  join();
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void AsyncCheckpoint::set_on_written(std::function<void(const std::string& path, std::int64_t step)> written) {
  join();
  written_ = std::move(written);
}

void AsyncCheckpoint::start(std::function<void()> work) {
  const auto body = [this, work = std::move(work)] {
    try {
      if (before_writing_) before_writing_();
      work();
    } catch (...) {
      failure_ = std::current_exception();
    }
  };
  try {
    thread_ = start_thread("a checkpoint in the background", body);
  } catch (const std::exception&) {
    body();  // the other ranks' threads wait for this one
  }
}

void AsyncCheckpoint::run_on_rank0(std::function<void()> body) {
  wait();
  start([this, body = std::move(body)] { on_rank0(*own_, body); });
}

void AsyncCheckpoint::save(const std::string& path, const nn::Module& module, optim::Optimizer& optimizer,
                           const nn::TrainingState& state, const optim::Scheduler* scheduler) {
  std::vector<const optim::Scheduler*> schedulers;
  if (scheduler) schedulers.push_back(scheduler);
  save(path, module, {optimizer}, state, schedulers);
}

void AsyncCheckpoint::save(const std::string& path, const nn::Module& module,
                           const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                           const nn::TrainingState& state, const std::vector<const optim::Scheduler*>& schedulers) {
  wait();
  check_optimizers(path, module, optimizers, group_);
  on_rank0(group_, [&] { AtomicFile(path).rehearse(); });
  const bool whole_on_rank0 = !group_.broadcast_object(state.tensors.empty() ? "" : "it has tensors").empty();
  if (!whole_on_rank0)
    if (std::shared_ptr shares = CheckpointByShares::begin(path, module, optimizers, state, group_, schedulers)) {
      // The other ranks will write with this one, and hear it there.
      try {
        shares->copy_values();
      } catch (const std::exception& error) {
        shares->fail(error.what());
      }
      return start([this, shares = std::move(shares), path, step = state.step] {
        shares->write(*own_);
        if (written_) on_rank0(*own_, [&] { written_(path, step); });
      });
    }
  const NoGradGuard values_only;
  const WholeParameters whole(module);
  for (optim::Optimizer& optimizer : optimizers)
    if (auto* sharded = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) sharded->consolidate();
  save_content(path, state.step, [&] {
    std::vector<optim::OptimizerState> states;
    for (const optim::Optimizer& optimizer : optimizers) states.push_back(optimizer.state());
    return nn::detail::checkpoint_content(module, states, state, schedulers);
  });
}

void AsyncCheckpoint::save_content(const std::string& path, std::int64_t step,
                                   const std::function<nn::detail::CheckpointContent()>& content, bool copies) {
  wait();
  const NoGradGuard values_only;
  const auto taken = std::make_shared<nn::detail::CheckpointContent>();
  on_rank0(group_, [&] {
    nn::require_no_later_checkpoint(path, step);
    *taken = content();
    for (nn::NamedTensor& each : taken->tensors)
      if (copies || each.tensor.device().is_cuda()) each.tensor = copy_on_cpu(each.tensor);
  });
  start([this, path, step, taken] {
    on_rank0(*own_, [&] {
      nn::save_safetensors(taken->tensors, path, taken->metadata);
      if (written_) written_(path, step);
    });
  });
}

}  // namespace lockstep::distributed
