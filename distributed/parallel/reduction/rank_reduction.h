#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "lockstep/distributed/parallel/reduction/shard_sums.h"
#include "lockstep/distributed/parallel/step_runner.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Gradients that travel together.
struct Bucket {
  Tensor memory;             ///< all that travels, and in the end `described.flat`
  GradientBucket described;  ///< flat [elements] and the parameters' views of it, which are their gradients
  OperationLabel label;
  std::vector<std::size_t> slots;     ///< the parameters, by their places in the reducer's list
  std::vector<std::int64_t> offsets;  ///< where each begins in `flat`
  std::int64_t elements = 0;          ///< of `flat`
  std::size_t pending = 0;            ///< gradients that are missing
  WorkPtr work;

  bool is_last() const { return described.index + 1 == described.count; }
};

/// How what each rank has computed becomes what one process would have: the policy behind a Reducer, which decides what
/// travels when. There are two: the mean over ranks, and the shard tree of lockstep mode; and sharded_reduction(),
/// which leaves each rank its part of either.
class RankReduction {
 public:
  virtual ~RankReduction() = default;

  /// Makes the memory of a bucket whose gradients have `elements` elements like `like`. The last one may carry a number
  /// for each of `parameters` as well.
  virtual void allocate(Bucket& bucket, std::int64_t elements, const TensorOptions& like, std::int64_t parameters) = 0;
  /// Clears the gradients at the beginning of a step.
  virtual void clear_gradients(const std::vector<Bucket>& buckets, const std::vector<nn::NamedTensor>& parameters) = 0;
  /// Takes this rank's gradient (perhaps undefined) of the bucket's i-th parameter into the bucket, and makes its view
  /// the parameter's gradient.
  virtual void collect(Bucket& bucket, std::size_t i, const Tensor& parameter) = 0;
  /// Starts the reduction of a bucket; null: there is nothing to wait for. `used`, by parameter, is complete with the
  /// last one, and then starts to travel too.
  virtual WorkPtr launch(Bucket& bucket, const std::vector<bool>& used) = 0;
  /// After every launch of a pass: waits for what launch() has given no work for.
  virtual void finish() {}
  /// Whether the parameters have their gradients afterwards.
  virtual bool keeps_gradients() const { return true; }
  /// After an exception in a pass: drops what is on its way.
  virtual void abandon() {}
  /// By parameter: has any rank used it? After all buckets; waits.
  virtual std::vector<bool> used_anywhere() = 0;

  /// Starts to add up the losses and their counts over the ranks, while the last backward computes.
  /// For a batch of so many samples.
  virtual void sum_losses(const StepRunner& runner, std::int64_t samples) = 0;
  /// What the runner's last backward divides by, for a batch of so many samples.
  virtual double divisor(const StepRunner& runner, std::int64_t samples) = 0;
  /// What the losses of all ranks count, after sum_losses(); waits.
  virtual double total_count() = 0;
  /// The mean loss over all ranks, one float64 element.
  virtual Tensor mean_loss() = 0;
};

/// The mean over the ranks, by an all-reduce of each bucket or by `hook`, if it is not null. The last bucket has a
/// place for each parameter behind its gradients: how many ranks used it travels along, which costs no operation of its
/// own. `device`: the module's.
std::unique_ptr<RankReduction> mean_reduction(ProcessGroupPtr group, Device device, CommunicationHookPtr hook);

/// The sum over all logical shards along the shard tree, divided by their losses' count. A bucket holds one row for
/// each unit of the tree that this rank has, so that a parameter's last additions write straight to where its sum
/// travels from. `sums` must outlive the result.
std::unique_ptr<RankReduction> tree_reduction(ProcessGroupPtr group, Device device, ShardSums& sums);

}  // namespace lockstep::distributed
