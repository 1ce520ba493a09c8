#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// Replaces every parameter that requires gradients by its mean over the ranks of `group`; all of them get the same
/// bits, those of ReduceOp::avg. Buffers and the state of optimizers stay each rank's own. A collective, which blocks
/// until done. Throws Error for a module whose parameters a step has divided (TrainingStepOptions::zero = 3), or whose
/// parameters are not those of the other ranks in number, shapes and dtypes; nothing has changed then.
void average_parameters(nn::Module& module, ProcessGroup& group);

/// Note [Local SGD]
/// Ranks that train alone between averages of their weights, where a network is too slow for an average of every
/// gradient: Stich, "Local SGD Converges Fast and Communicates Little" (2019), and, with `warmup_steps` of averaged
/// gradients before, Lin et al., "Don't Use Large Mini-Batches, Use Local SGD" (2020). The counterpart of torch's
/// PeriodicModelAverager and post-local SGD:
///
///   DistributedDataParallel ddp(model, group);
///   PeriodicModelAverager averager(model, group, {.period = 8, .warmup_steps = 500});
///   std::optional<NoSync> alone;
///   for (const data::Batch& batch : epoch) {
///     if (!alone && averager.steps() == 500) alone.emplace(ddp.no_sync());
///     optimizer.zero_grad();
///     cross_entropy(ddp(batch.x), batch.y).backward();
///     optimizer.step();
///     averager.step();
///   }
///
/// Such training depends on the number of ranks: lockstep mode has no part in it.
class PeriodicModelAverager {
 public:
  struct Options {
    std::int64_t period;            ///< steps from an average to the next, at least 1
    std::int64_t warmup_steps = 0;  ///< during which there is none
  };
  /// A group and how often it averages; see the second constructor.
  struct Level {
    ProcessGroup* group;
    std::int64_t period;
  };

  /// The module and the group must outlive this object. Throws Error for a period below 1 or fewer than 0 steps.
  PeriodicModelAverager(nn::Module& module, ProcessGroup& group, Options options);
  /// Groups that hold more and more of the ranks, such as a node's and all, and average less and less often: torch's
  /// HierarchicalModelAverager. A step averages over the last of those whose turn it is. Throws Error also unless each
  /// period is a multiple of the one before and larger.
  PeriodicModelAverager(nn::Module& module, std::vector<Level> levels, std::int64_t warmup_steps = 0);

  /// After each step of the optimizer, on all ranks as often. The first after the warm-up averages, then every
  /// period-th. Returns the group that it averaged over, or null. A collective of that group; Error as
  /// average_parameters().
  ProcessGroup* step();

  std::int64_t steps() const { return steps_; }  ///< how often step() was called; part of a checkpoint
  /// Goes on from a checkpoint. Throws Error for a negative number.
  void set_steps(std::int64_t steps);

 private:
  nn::Module& module_;
  std::vector<Level> levels_;
  std::int64_t warmup_steps_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep::distributed
