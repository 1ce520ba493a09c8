#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/reduction/shard_sums.h"
#include "lockstep/distributed/parallel/reduction/tree_reducer.h"
#include "lockstep/distributed/parallel/workers/device_threads.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Note [Lockstep step]
/// One training step in lockstep mode: the batch is cut into a fixed number of logical shards, each of which is
/// computed alone, and everything that shards contribute (gradients, loss, counts, batch norm's statistics) is added up
/// along one fixed tree. The results have the same bits on any number of workers up to the number of shards, be they
/// processes or devices. docs/lockstep.md says why, and what else has to hold.
class LockstepStep {
 public:
  using LossFunction = ShardRunner::LossFunction;
  virtual ~LockstepStep() = default;

  /// Computes the batch (the global one, or this process's samples of it), updates the running statistics, and leaves
  /// the gradients of the loss over the global batch with the module's parameters. Returns that loss. `step` enters the
  /// random keys. Throws Error for a batch without samples, or whose losses count nothing.
  virtual double operator()(const data::Batch& batch, std::uint64_t step, const LossFunction& loss) = 0;
  /// Between processes: when gradients and reductions of the last step happened; else null.
  virtual const ReducerTrace* trace() const { return nullptr; }
  /// Names of the parameters that no shard of the last step used. They have no gradient, as in one process without
  /// lockstep mode.
  const std::vector<std::string>& unused_everywhere() const { return unused_; }

 protected:
  /// Takes the gradients away from the parameters that no shard used, and names them on stderr the first time, on one
  /// rank.
  void drop_unused(const std::vector<nn::NamedTensor>& parameters, const std::vector<bool>& used, std::uint64_t step,
                   int rank);

 private:
  std::vector<std::string> unused_;
  bool warned_ = false;
};

/// On one or several devices of this process. `replicas` are modules like `module`, one a device, that the caller keeps
/// equal to it; one replica may be the module itself. All must outlive the step.
std::unique_ptr<LockstepStep> make_local_lockstep_step(nn::Module& module, std::vector<nn::Module*> replicas,
                                                       std::shared_ptr<DeviceThreads> threads, std::int64_t shards);

/// On the processes of a group, one module each.
std::unique_ptr<LockstepStep> make_group_lockstep_step(nn::Module& module, ProcessGroupPtr group, std::int64_t shards,
                                                       const ReducerOptions& options);

}  // namespace lockstep::distributed
