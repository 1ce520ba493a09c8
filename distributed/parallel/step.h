#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

struct Division;
class Devices;
class ParameterShards;
class Ranks;
struct ReducerTrace;

/// While it lives, a module's parameters are whole where a step keeps only parts of them: see
/// TrainingStep::whole_parameters(). Its end takes their values into the parts; no step may be made before. It may
/// outlive the step, and the module: parameters that are whole when their step ends stay so for good.
class [[nodiscard]] WholeParameters {
 public:
  WholeParameters() = default;
  explicit WholeParameters(const std::shared_ptr<ParameterShards>& shards);  ///< null: nothing to do
  /// Those of the step that trains `module`, or a model that it is a part of, if it divides them.
  explicit WholeParameters(const nn::Module& module);
  WholeParameters(WholeParameters&&) noexcept = default;
  WholeParameters& operator=(WholeParameters&&) = delete;
  ~WholeParameters();

 private:
  std::weak_ptr<ParameterShards> shards_;
};

/// A model and its training step, the same code for one device, several devices and several processes:
///
///   TrainingStep step([] { return std::make_unique<Net>(); }, {.job = &job, .logical_shards = 8});
///   optim::SGD optimizer(step.module().parameters(), {.lr = 0.02});
///   for (const data::Batch& batch : loader.epoch(0)) {
///     Tensor loss = step(batch, [](nn::Module& net, const data::Batch& part) {
///       return cross_entropy(net(part.x), part.y);
///     });
///     optimizer.step();
///   }
///
/// Cutting the batch, weighting its parts, accumulation and short batches are the step's business (Note [Shares]): the
/// batch is cut into shares, the workers (devices or ranks) compute theirs, and losses and gradients are added up and
/// divided by what all shares count.
///
/// Random numbers of a step (dropout, augmentation) are keyed by its number: that of a RandomKeyGuard around the call,
/// or how many were made before, from the step on that nn::load_checkpoint() or distributed::load_checkpoint() has
/// found.
///
/// DataParallel and DistributedDataParallel are this step for programs in PyTorch's idiom.
class TrainingStep {
 public:
  /// Makes the model; called once more for each replica, it must make equal structures.
  using Factory = std::function<std::unique_ptr<nn::Module>()>;

  /// Trains a module that exists, which must outlive this object, on its device or on the ranks of a job or group. On
  /// ranks, names, shapes and dtypes are compared (Error on all ranks if they differ), in lockstep mode also the
  /// fingerprints (lockstep_fingerprint()), and rank 0's parameters and buffers are broadcast. The module must
  /// not gain or lose parameters meanwhile. Throws Error for options that do not go together (Note [What does not go
  /// together]).
  explicit TrainingStep(nn::Module& module, TrainingStepOptions options = {});
  /// The same with a module made by `factory` and put on the job's device, or on the first of the given devices, which
  /// get a replica each if they are several. The random keys of this thread then are as if it had been called once.
  explicit TrainingStep(const Factory& factory, TrainingStepOptions options = {});
  ~TrainingStep();
  TrainingStep(TrainingStep&&) noexcept;
  TrainingStep& operator=(TrainingStep&&) noexcept;

  /// Clears the gradients and leaves those of the loss over the whole *global* batch in module()'s parameters, however
  /// unevenly it divides. `batch` is the global batch, the same on every rank, or this rank's part of it, from a loader
  /// that knows rank and world size or has a data::DistributedSampler (batch.global_size tells; a part may be empty; in
  /// lockstep mode the loader must know the shards).
  ///
  /// Returns the loss, float64 without dimensions, the same on every rank, without waiting for the device: reading it
  /// does (`loss.item<double>()`). It lies on module()'s device, or on the CPU where the host has added it up (several
  /// devices, lockstep mode). Throws Error for a batch without samples, or whose losses count nothing.
  Tensor operator()(const data::Batch& batch, const LossFunction& loss);

  /// The same for ranks that bring samples of their own, `own`, as many as each has: none at all once it has run out
  /// (Note [Uneven inputs]). Every rank calls it, in a loop, until it returns nothing, which it does on all ranks at
  /// once, when none has any sample left. Gradients and loss are those of the mean over the samples of all ranks. An
  /// empty batch needs no tensors, except in models with synchronised batch norm, which compute it too: a tensor of 0
  /// rows then. Buffers are those of a rank that had samples in the last step, at the end on all ranks. In one process
  /// the end is an empty batch.
  std::optional<Tensor> join(const data::Batch& own, const LossFunction& loss);

  /// The module that is trained, saved and given to the optimizer.
  nn::Module& module() { return *module_; }
  /// A collective: with divided parameters (TrainingStepOptions::zero = 3), all of them whole on every rank for as long
  /// as the result lives, to be read, saved or changed by all ranks alike; nothing otherwise. Held while the step ends,
  /// it leaves a module that another step may train; without it the values are lost with the step, and reading them, or
  /// making another step, is an Error.
  [[nodiscard]] WholeParameters whole_parameters();
  /// On several ranks: their group; else null.
  ProcessGroup* group() const;
  /// TrainingStepOptions::ignored_modules.
  const std::vector<std::string>& ignored_modules() const;
  /// On ranks: when gradients and reductions of the last step happened; else null.
  const ReducerTrace* trace() const;
  /// Why a step cannot be recorded and replayed as a CUDA graph; empty if nothing known before forbids it.
  std::string capture_obstacle() const;
  /// After a recording that has failed: the next step begins anew.
  void abandon();

 private:
  friend class DataParallel;
  friend class DistributedDataParallel;
  friend class ZeroRedundancyOptimizer;

  void make_workers(const Factory& factory, const TrainingStepOptions& options);
  bool is_lockstep() const;
  Tensor forward(Tensor x);
  std::uint64_t next_step();   // the number of the next step, which a checkpoint that was loaded may have set
  std::uint64_t count_step();  // several threads may; returns the count before

  std::unique_ptr<nn::Module> owned_;
  nn::Module* module_;
  std::unique_ptr<Devices> devices_;  // one of the two
  std::unique_ptr<Ranks> ranks_;
  std::uint64_t steps_ = 0, loads_seen_ = 0;
};

}  // namespace lockstep::distributed

namespace lockstep {

using distributed::LossFunction;
using distributed::LossValue;
using distributed::TrainingStep;
using distributed::TrainingStepOptions;

}  // namespace lockstep
