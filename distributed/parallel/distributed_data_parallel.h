#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/loss_value.h"
#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "lockstep/distributed/parallel/reduction/reducer.h"
#include "lockstep/distributed/parallel/workers/uneven_inputs.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

class LockstepStep;

/// Options of DistributedDataParallel.
struct DistributedDataParallelOptions {
  /// V, a power of two and at least the world size: lockstep mode (docs/lockstep.md), in which step() gives the same
  /// bits on every number of processes. 0: off.
  std::int64_t logical_shards = 0;
  /// step() computes this rank's part in so many slices, one after the other, and communicates in the last one's
  /// backward: less memory, the same gradients (Note [Accumulation]). Lockstep mode does so by itself; 1 there.
  std::int64_t accumulate = 1;
  /// A promise that every step of a rank uses the same parameters as its first one. Buckets with parameters that it
  /// does not use then are reduced as early as others, instead of at the end of backward; a step that breaks the
  /// promise is an error that names the parameter. Without it nothing is assumed. Of no effect in lockstep mode.
  bool static_graph = false;
  /// Before each training forward, give every rank rank 0's buffers (batch norm's running statistics).
  bool broadcast_buffers = true;
  /// Gradients travel in buckets of so many bytes: a small one first, so that communication starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;  ///< of all other buckets
  /// Averages the gradients in another way than an all-reduce (Note [Communication hooks]): fp16_compression(),
  /// bf16_compression(), power_sgd(), or one's own. Not in lockstep mode.
  CommunicationHookPtr hook = nullptr;
};

/// Trains one module on every rank of a group, each rank on its own samples, with gradients averaged during backward().
/// Semantics of torch.nn.parallel.DistributedDataParallel.
///
/// Construction compares names, shapes and dtypes across ranks (Error on all ranks if they differ) and broadcasts rank
/// 0's parameters and buffers. The module must outlive this object and must not gain or lose parameters meanwhile.
///
/// Two ways to use it. A training step that knows about the ranks so that the loop need not:
///
///   double loss = ddp.step(batch, [&](const data::Batch& part) {
///     return cross_entropy(model.forward(part.x), part.y);
///   });
///   optimizer.step();
///
/// or PyTorch's idiom, on this rank's samples: `loss = f(ddp(x)); optimizer.zero_grad(); loss.backward();`.
///
/// In lockstep mode the constructor also compares the fingerprints of all ranks (lockstep_fingerprint()), and
/// only the first way is open: the second leaves it to the caller what is computed together, so that recording a graph
/// through operator(), and no_sync(), are errors there.
class DistributedDataParallel {
 public:
  /// Returns the mean loss over the samples of the part, as a one-element tensor, or a sum and its count.
  using LossFunction = std::function<LossValue(const data::Batch& part)>;

  DistributedDataParallel(nn::Module& module, ProcessGroupPtr group, DistributedDataParallelOptions options = {});
  DistributedDataParallel(nn::Module& module, const Job& job, DistributedDataParallelOptions options = {});
  ~DistributedDataParallel();
  DistributedDataParallel(DistributedDataParallel&&) noexcept;

  /// The module's forward() on this rank's samples.
  Tensor operator()(Tensor x);

  /// One training step. Clears the gradients, computes this rank's part of the loss and its gradients, and leaves the
  /// gradients of the mean loss over the whole *global* batch for the optimizer, however unevenly the batch divides.
  /// Returns that mean loss, the same on every rank. In lockstep mode the loss function is called for each logical
  /// shard of this rank. `batch` is either the global batch, the same on every rank (then this rank takes its part by
  /// data::partition), or, from a loader that knows rank and world size or has a data::DistributedSampler, this rank's
  /// part of it (batch.global_size tells; a part may be empty; in lockstep mode the loader must know the shards).
  double step(const data::Batch& batch, const LossFunction& loss);

  /// step() without waiting for the device: returns the mean loss as one float64 element there. Not in lockstep mode.
  Tensor enqueue_step(const data::Batch& batch, const LossFunction& loss);

  /// Why enqueue_step() cannot be recorded and replayed (Note [Captured steps]); empty if nothing here forbids it.
  std::string capture_obstacle() const;
  /// After a recording that has failed: the next step begins anew.
  void abandon_step();

  /// step() for ranks that bring samples of their own, `own`, as many as each has: none at all once it has run out
  /// (Note [Uneven inputs]). Every rank calls it, in a loop, until it returns nothing, which it does on all ranks at
  /// once, when none has any sample left:
  ///
  ///   while (const auto loss = ddp.join_step(next_batch(), f)) optimizer.step();
  ///
  /// Gradients and loss are those of the mean over the samples of all ranks. An empty batch needs no tensors, except in
  /// models with synchronised batch norm, which compute it too: a tensor of 0 rows then. Buffers are those of a rank
  /// that had samples in the last step, at the end on all ranks. Not in lockstep mode, whose shards are those of one
  /// global batch.
  std::optional<double> join_step(const data::Batch& own, const LossFunction& loss);

  /// Runs a training loop in PyTorch's idiom in which ranks may run out of samples at different times; the counterpart
  /// of torch's `with ddp.join():`. The loop calls `ddp(x)` with recording on once for each backward(), and x's
  /// dimension 0 counts the samples that its loss is the mean of: the averages are weighted by them. When a rank's loop
  /// has ended, the rank takes part with gradients of zero until those of all ranks have, and calls `keep_up`, such as
  /// `[&] { optimizer.step(); }`, after each average. Then all ranks get weights and buffers of one that was last;
  /// without `keep_up`, the optimizer's state stays behind where a loop ended early. Not in lockstep mode, nor with
  /// synchronised batch norm.
  void join(const std::function<void()>& loop, const std::function<void()>& keep_up = nullptr);

  /// While the returned guard lives, backward() only accumulates locally. The first backward() after it averages the
  /// sum.
  class NoSync {
   public:
    ~NoSync() { reducer_.set_synchronize(previous_); }
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    friend class DistributedDataParallel;
    explicit NoSync(Reducer& reducer) : reducer_(reducer), previous_(reducer.synchronize()) {
      reducer_.set_synchronize(false);
    }
    Reducer& reducer_;
    bool previous_;
  };
  /// Starts local accumulation; see NoSync. Not in lockstep mode.
  [[nodiscard]] NoSync no_sync();

  nn::Module& module() { return module_; }           ///< the one that it was made with
  ProcessGroup& process_group() { return *group_; }  ///< the ranks that it averages over
  /// True if it was made with logical shards.
  bool is_lockstep() const { return lockstep_ != nullptr; }
  /// When gradients and reductions of the last step happened.
  const ReducerTrace& trace() const;
  /// Names of the parameters that got no gradient on this rank in the last step and counted as zero; in lockstep mode,
  /// none.
  std::vector<std::string> unused_parameters() const;
  /// Names of the parameters that no rank used: they have no gradient. The first step that leaves some out says so in a
  /// line on rank 0's stderr.
  std::vector<std::string> unused_everywhere() const;

 private:
  void share_buffers(int root);
  void announce(std::int64_t samples);
  void follow(const std::function<void()>& keep_up);
  data::Batch part_of(const data::Batch& batch) const;
  double mean_of(const Tensor& totals);
  /// The sum of the losses and its divisor, over all ranks.
  Tensor plain_step(const data::Batch& part, std::uint64_t step, const LossFunction& loss);

  nn::Module& module_;
  ProcessGroupPtr group_;
  DistributedDataParallelOptions options_;
  std::vector<Tensor> buffers_;
  std::unique_ptr<Reducer> reducer_;  // one of the two
  std::unique_ptr<LockstepStep> lockstep_;
  WorkPtr summed_;  // of the last step's totals
  std::uint64_t steps_ = 0;
  bool joining_ = false;           // join() runs
  std::int64_t join_samples_ = 0;  // since its last average
  UnevenStep join_step_;           // its last one
  int buffers_root_ = 0;           // a rank that computed in the last step, so that its buffers have seen it
};

}  // namespace lockstep::distributed
