#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/distributed/parallel/reduction/reducer.h"
#include "lockstep/distributed/parallel/sharding/division.h"
#include "lockstep/distributed/parallel/sharding/parameter_shards.h"
#include "lockstep/distributed/parallel/share_runner.h"
#include "lockstep/distributed/parallel/workers/module_agreement.h"
#include "lockstep/distributed/parallel/workers/same_batch.h"
#include "lockstep/distributed/parallel/workers/shared_state.h"
#include "lockstep/distributed/parallel/workers/uneven_inputs.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/optim/gradients_in_parts.h"

namespace lockstep::distributed {

/// The workers of a step when they are the ranks of a group, one module each. Made and used by every rank alike.
class Ranks {
 public:
  /// Compares names, shapes and dtypes across ranks (Error on all ranks if they differ), in lockstep mode also the
  /// fingerprints, and broadcasts rank 0's parameters and buffers. The options have been checked; the module must
  /// outlive this object.
  Ranks(nn::Module& module, const TrainingStepOptions& options);

  /// This rank's part of a batch: of the global one, or as a loader cut it. Once a step, on all ranks.
  data::Batch part_of(const data::Batch& batch);
  /// Leaves the gradients of the loss over the global batch with the module; returns that loss.
  Tensor step(const data::Batch& part, std::uint64_t step, const LossFunction& loss);
  /// See Note [Uneven inputs].
  std::optional<Tensor> join_step(const data::Batch& own, std::uint64_t step, const LossFunction& loss);

  /// PyTorch's idiom: see DistributedDataParallel. In the loss of another model's step, of a divided model without
  /// trained parameters: Error unless the ranks compute that loss equally often.
  Tensor forward(Tensor x);
  /// The same around `compute`, which calls the module and returns whether backward() will follow. `samples`: of which
  /// its loss will be the mean, if they are known.
  void forward(const std::function<bool()>& compute, std::optional<std::int64_t> samples);
  void join(const std::function<void()>& loop, const std::function<void()>& keep_up);

  /// Of a collective that a loss calls: Error in a lockstep step of this thread whose ranks are in `group` too, since
  /// they compute different shards, one by one.
  static void check_recorded(const ProcessGroup& group, const char* what);

  ProcessGroup& group() { return *group_; }  ///< the ranks
  Reducer& reducer() { return *reducer_; }   ///< of the gradients
  const std::vector<std::string>& ignored_modules() const { return options_.ignored_modules; }
  bool is_lockstep() const { return sums_ != nullptr; }
  const std::shared_ptr<Division>& division() const { return division_; }     ///< of gradients; null: they are whole
  const std::shared_ptr<ParameterShards>& shards() const { return shards_; }  ///< null: parameters are whole
  /// See TrainingStep.
  void abandon();
  /// Why a step cannot be recorded and replayed; empty if nothing here forbids it.
  std::string capture_obstacle() const;

 private:
  void divide();
  void check_optimizer() const;
  bool can_divide_later() const;
  void finish_own(double scale) const;
  Tensor compute(const data::Batch& part, std::uint64_t step, const LossFunction& loss, bool empty_slices);
  void share_buffers(int root);
  void announce(std::int64_t samples);
  void follow(const std::function<void()>& keep_up);

  nn::Module& module_;
  ProcessGroupPtr group_;
  TrainingStepOptions options_;
  SharedState shared_;
  std::vector<Tensor> buffers_;  // the shared ones
  FrozenParameters frozen_;
  SameBatch same_batch_;
  std::unique_ptr<ShardSums> sums_;  // in lockstep mode
  std::unique_ptr<Reducer> reducer_;
  std::optional<optim::detail::GradientsInParts> own_gradients_;  // of ignored_modules
  std::shared_ptr<Division> division_;
  std::shared_ptr<ParameterShards> shards_;  // of ZeRO-3
  std::unique_ptr<StepRunner> runner_;
  std::vector<std::pair<std::size_t, std::size_t>> lists_;  // of a model part's parameters: the first, and how many
  ShareRunner* whole_model_ = nullptr;                      // runner_, unless a model part made it
  bool joining_ = false;                                    // join() runs
  std::int64_t join_samples_ = 0;                           // since its last average
  UnevenStep join_step_;                                    // its last one
  int buffers_root_ = 0;  // a rank that computed in the last step, so that its buffers have seen it
};

}  // namespace lockstep::distributed
