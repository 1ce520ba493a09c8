#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/dtype.h"
#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

class ModelPart;

/// What a loss function returns for its part of a batch: either the mean over the part's samples (a Tensor converts),
/// or a sum together with what the sum over the whole batch is to be divided by, such as a number of tokens. The step
/// weights the parts so that their gradients are those of the loss over the whole batch.
class LossValue {
 public:
  /// The mean over the part's samples: one element.
  LossValue(Tensor mean) : value_(std::move(mean)) {}
  /// A sum of losses, one element, and its share of the divisor.
  static LossValue sum(Tensor sum, double count) { return LossValue(std::move(sum), count); }

  const Tensor& value() const { return value_; }  ///< one element: the mean, or the sum
  /// Of a sum; none: the value is a mean over samples.
  const std::optional<double>& count() const { return count_; }

  /// The divisor's share, and the factor that makes a sum of the value, for a part of so many samples.
  double count_of(std::int64_t samples) const { return count_.value_or(static_cast<double>(samples)); }
  /// See count_of().
  double sum_factor(std::int64_t samples) const { return count_ ? 1.0 : static_cast<double>(samples); }

 private:
  LossValue(Tensor sum, double count) : value_(std::move(sum)), count_(count) {}

  Tensor value_;
  std::optional<double> count_;
};

/// The loss of a part of a batch, computed by `module`: the model that is trained, or its replica on a device. A step
/// calls it for each part that is computed here; with several devices, on several threads at once.
using LossFunction = std::function<LossValue(nn::Module& module, const data::Batch& part)>;

/// Throws Error unless the value is one element and a count is finite and not negative.
void check_loss(const LossValue& loss);

/// Who computes a training step, and how: of TrainingStep, DistributedDataParallel and DataParallel. By default, one
/// device of this process computes each batch at once.
struct TrainingStepOptions {
  /// Train on the processes of this job. A job of one process is allowed. Null: in this process alone.
  const Job* job = nullptr;
  /// The same, on the ranks of a group.
  ProcessGroupPtr group = nullptr;
  /// Without a job or group: several devices hold a replica each; one or none is one module.
  std::vector<Device> devices = {};
  /// V, a power of two and at least the number of workers (devices or ranks): lockstep mode (docs/lockstep.md), in
  /// which a step gives the same bits on every number of them. 0: off.
  std::int64_t logical_shards = 0;
  /// Compute each worker's part in so many slices, one after the other (Note [Shares]): less memory, the same
  /// gradients. 1 in lockstep mode, whose slices are the logical shards.
  std::int64_t accumulate = 1;
  /// On ranks that are one dimension of a mesh: the part of the model that this rank and they hold, and how it is
  /// computed together with the others (PipelineParallel::part()). It must outlive the step. Null: the whole model.
  ModelPart* model_part = nullptr;
  /// On ranks: a promise that every step of a rank uses the same parameters as its first one. Buckets with parameters
  /// that it does not use then are reduced as early as others, instead of at the end of backward; a step that breaks
  /// the promise is an error that names the parameter. Without it nothing is assumed. Of no effect in lockstep mode.
  bool static_graph = false;
  /// On ranks: before each training forward, give every rank rank 0's buffers (batch norm's running statistics). Of no
  /// effect in lockstep mode, which combines the statistics of all shards.
  bool broadcast_buffers = true;
  /// On ranks: the first bucket of gradients is small, so that communication starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;  ///< of all other buckets, about
  /// On ranks: 2 divides gradients and the optimizer's state over them (ZeRO-2), 3 the parameters too (ZeRO-3, as
  /// PyTorch's fully_shard): see ZeroRedundancyOptimizer. 0: neither. The optimizer is a
  /// ZeroRedundancyOptimizer made with this step; in lockstep mode the bits are those without.
  int zero = 0;
  /// Of ZeRO-3: names of the modules whose parameters are gathered together, each ahead of its computation, and dropped
  /// behind it ("h.0"). Empty: the elements of the first ModuleList or Sequential, or the model's children if there is
  /// none. Parameters of no such module, or of two, are gathered once a step, and so are those of a model_part, whose
  /// micro-batches would gather each block anew.
  std::vector<std::string> shard_units = {};
  /// Of ZeRO-3: what float32 parameters travel as when a step gathers them. kBFloat16 halves these bytes: a step then
  /// computes with values rounded to it, the same on any number of ranks, one included, while what the optimizer
  /// updates, and what whole_parameters() and checkpoints have, stays float32.
  DType gather_dtype = kFloat32;
  /// Of ZeRO-3: ranks that gather parameters among themselves, so many with neighbouring numbers, such as those of one
  /// machine (Job::local_world_size()). They keep all parameters together, and what they compute with travels between
  /// them alone; gradients and the optimizer's state are divided over all ranks still, and the new values go from group
  /// to group once, after the optimizer's step. The same bits, less between machines, more memory: of parameters a rank
  /// keeps 1 / gather_within. As PyTorch's hybrid sharding. 0: all ranks. Must divide their number.
  int gather_within = 0;
  /// On ranks: averages the gradients in another way than an all-reduce (Note [Communication hooks]):
  /// fp16_compression(), bf16_compression(), power_sgd(), or one's own.
  CommunicationHookPtr hook = nullptr;
  /// On ranks: names of modules ("h.3.experts") whose parameters and buffers are this rank's own, such as the experts
  /// of a mixture that lie on different ranks: they are neither compared nor broadcast nor averaged, and each rank may
  /// have other ones. What the ranks' losses owe to each other's goes through distributed::functional. step() leaves
  /// the gradients of the global loss in them as in all others; backward() in PyTorch's idiom, as there, those of the
  /// sum of the ranks' losses, which are (ranks) times as large. An optimizer, a checkpoint and clip_grad_norm_() see
  /// what their rank has: save each rank's own modules to a file of its own, and clip them apart from the others, whose
  /// factor must be the same on all ranks. evaluate() and update_bn() give all ranks rank 0's buffers and batches of
  /// their own: they are not for models whose ranks compute together, or with buffers in these modules.
  std::vector<std::string> ignored_modules = {};

  /// The ranks' group, of the job or as given; null: this process alone.
  ProcessGroupPtr ranks() const { return job ? job->process_group() : group; }
};

/// Note [What does not go together]
/// A step is refused when it is constructed, by check_options() and nothing else, if its options cannot be had
/// together:
///
/// - a job (or group) and devices: a process of a job trains on the job's device;
/// - a job and a group, or a communication hook without either;
/// - several devices and a module that exists: replicas come from a factory;
/// - lockstep mode and accumulation, a communication hook, synchronised batch norm, a number of shards that is no power
///   of two, or fewer shards than workers;
/// - ignored_modules and no job or group, lockstep mode, zero, or a model part; or that no module has;
/// - zero and no job or group, a communication hook, static_graph, or a parameter that is not contiguous;
/// - shard_units, gather_dtype or gather_within and another zero than 3; a number of ranks that gather_within does not
///   divide; shard_units and a model part, or that no module has, or of which one holds another;
/// - a model part and no group, or synchronised batch norm;
/// - ranks or lockstep mode and a model without trained parameters, but for one that is divided (zero = 3) to be read.
///
/// The last is read in the loss of another model's step, which all ranks must compute equally often: a batch that they
/// cut into different numbers of parts (3 ranks with 4 logical shards, slices of a short batch, or fewer samples than
/// ranks) is an Error there.
///
/// What PyTorch's idiom leaves to the caller (which samples are computed together, and when gradients are averaged)
/// does not exist in lockstep mode either: see check_not_lockstep().

/// Throws Error for options that do not go together, for a step of `module`; `has_factory`: replicas can be made.
void check_options(const TrainingStepOptions& options, nn::Module& module, bool has_factory);

/// Throws Error where a rank has a part of the model, for `what`: all parts are computed together, by step() alone.
void check_whole_model(bool part, const char* what);
/// Throws Error in lockstep mode, for `what`: recording a graph by operator() of a wrapped module, no_sync(), join(),
/// join_step().
void check_not_lockstep(bool lockstep, const char* what);

}  // namespace lockstep::distributed
