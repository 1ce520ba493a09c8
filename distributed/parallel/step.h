#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/loss_value.h"
#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "lockstep/distributed/parallel/reduction/reducer.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

class DistributedDataParallel;

/// Options of TrainingStep.
struct TrainingStepOptions {
  /// Train on the processes of this job (DistributedDataParallel), which must outlive the step; null: in this process
  /// alone. A job of one process is allowed.
  const Job* job = nullptr;
  /// Without a job: several devices are several replicas (DataParallel); one or none is one module.
  std::vector<Device> devices = {};
  /// V: lockstep mode, see docs/lockstep.md. 0: off.
  std::int64_t logical_shards = 0;
  /// Compute each part in so many slices, one after the other (Note [Accumulation]): less memory, the same gradients.
  /// Lockstep mode does so by itself; 1 there.
  std::int64_t accumulate = 1;
  /// With a job: see DistributedDataParallelOptions.
  bool static_graph = false;
  /// With a job: averages the gradients in another way (Note [Communication hooks]). Not in lockstep mode.
  CommunicationHookPtr hook = nullptr;
};

/// A model and its training step, the same code for one device, several devices and several processes:
///
///   distributed::TrainingStep step([] { return std::make_unique<Net>(); }, {.job = &job, .logical_shards = 8});
///   optim::SGD optimizer(step.module().parameters(), {.lr = 0.02});
///   for (const data::Batch& batch : loader.epoch(0)) {
///     double loss = step(batch, [](nn::Module& net, const data::Batch& part) {
///       return cross_entropy(net.forward(part.x), part.y);
///     });
///     optimizer.step();
///   }
///
/// Cutting the batch, weighting its parts, accumulation and short batches are the step's business.
class TrainingStep {
 public:
  /// Makes the model; called once a replica, it must make equal structures.
  using Factory = std::function<std::unique_ptr<nn::Module>()>;
  /// The mean loss over the samples of the part, or a sum and its count. Called with the module to use, for each part
  /// that is computed here; with several devices, on several threads at once.
  using LossFunction = std::function<LossValue(nn::Module& module, const data::Batch& part)>;

  /// Calls `factory` for the module and for each replica, after which the random keys of this thread are as if it had
  /// been called once. Throws Error for options that do not fit together.
  TrainingStep(const Factory& factory, TrainingStepOptions options = {});
  /// The step of a DistributedDataParallel that exists, and must outlive this object.
  explicit TrainingStep(DistributedDataParallel& ddp);
  ~TrainingStep();
  TrainingStep(TrainingStep&&) noexcept;
  TrainingStep& operator=(TrainingStep&&) noexcept;

  /// Clears the gradients, leaves those of the loss over the whole global batch in module()'s parameters and returns
  /// that loss, the same on every rank. `batch` is the global batch, or a loader's part of it for this rank.
  double operator()(const data::Batch& batch, const LossFunction& loss);

  /// The same without waiting for the device: returns the loss as one float64 element, on module()'s device. Not with
  /// several devices, nor in lockstep mode.
  Tensor enqueue(const data::Batch& batch, const LossFunction& loss);
  /// Why enqueue() cannot be called; empty if it can.
  std::string enqueue_obstacle() const;
  /// Why enqueue() cannot be recorded and replayed as a CUDA graph; empty if nothing known before forbids it.
  std::string capture_obstacle() const;
  /// After a recording that has failed: the next step begins anew.
  void abandon();

  /// The same for processes that bring samples of their own, as many as each has, until none has any left: then it
  /// returns nothing, on all of them at once. See DistributedDataParallel::join_step(). Not in
  /// lockstep mode.
  std::optional<double> join(const data::Batch& own, const LossFunction& loss);

  /// The module that is trained, saved and given to the optimizer.
  nn::Module& module();
  /// With a job: when gradients and reductions of the last step happened; else null.
  const ReducerTrace* trace() const;
  /// With a job of several processes: its group; else null.
  ProcessGroup* group() const;

 private:
  struct Impl;
  struct Single;
  struct Devices;
  struct Processes;
  struct Borrowed;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::distributed
