#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// What a hook is given: gradients that travel together.
struct GradientBucket {
  std::size_t index = 0;  ///< buckets are launched in this order, 0 to count - 1, in every pass
  std::size_t count = 0;  ///< number of buckets
  Tensor flat;            ///< [elements]: this rank's gradients, to be replaced by their average over the ranks
  /// Under their parameters' names, as views of `flat`. Each begins at a multiple of 16 bytes; between them are zeros.
  std::vector<nn::NamedTensor> gradients;
};

/// Note [Communication hooks]
/// Averages the gradients of a DistributedDataParallel in another way than a plain all-reduce: compressed, quantised,
/// by another topology. One hook serves one DistributedDataParallel, since it may keep state for its buckets. It runs
/// on every rank, also in a world of one, and must issue the same operations in the same order on all.
class CommunicationHook {
 public:
  virtual ~CommunicationHook() = default;

  /// "fp16": for messages.
  virtual std::string name() const = 0;
  /// Called for each bucket as soon as its gradients are there, while backward runs. Starts the reduction and returns
  /// at once; when wait() of the result has returned, bucket.flat must hold the average, the same on every rank. Chains
  /// of operations are built with continue_with().
  virtual WorkPtr reduce(const GradientBucket& bucket, ProcessGroup& group) = 0;
  /// True if every pass issues the same operations with the same numbers, so that one pass can be recorded and replayed
  /// (Note [Captured steps]).
  virtual bool is_replayable() const { return false; }

  /// What this rank's hook carries from one step to the next, for checkpoints; between steps. Nothing for most.
  virtual std::vector<nn::NamedTensor> state() const { return {}; }
  /// Before its first step: goes on from such a state, whose tensors are on the CPU. Throws Error, in that step at the
  /// latest, for one that does not fit.
  virtual void load_state(const std::vector<nn::NamedTensor>& /*state*/) {}
};

/// Shared between options and the training that uses it.
using CommunicationHookPtr = std::shared_ptr<CommunicationHook>;

/// A Work that goes on. advance() waits for `first` and calls `then`, once; what `then` returns, if anything, is waited
/// for by wait(). The reducer advances all buckets in order before it waits for any, so that the second operations of
/// all buckets are under way together.
class ContinuedWork final : public Work {
 public:
  ContinuedWork(WorkPtr first, std::function<WorkPtr()> then);
  /// Waits for the first operation and starts the second, if that has not been done.
  void advance();
  using Work::wait;
  void wait(Milliseconds timeout) override;

 private:
  WorkPtr first_;
  std::function<WorkPtr()> then_;
  WorkPtr second_;
};

/// Both on the thread that waits.
WorkPtr continue_with(WorkPtr first, std::function<WorkPtr()> then);

/// Gradients travel as float16 or bfloat16: half the bytes of float32. Each rank's gradient is rounded, and so is the
/// average (on CUDA devices each addition): it is off by about 2^-11 (2^-8 for bfloat16) of the largest addend. float16
/// flushes what is below 6e-8 to zero and overflows above 65504, on CUDA devices of W ranks sqrt(W) times earlier on
/// either side; bfloat16 has float32's range.
CommunicationHookPtr fp16_compression();
CommunicationHookPtr bf16_compression();

}  // namespace lockstep::distributed
