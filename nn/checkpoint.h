#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/nn/module.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/nn/optim/schedule.h"
#include "lockstep/nn/safetensors.h"

namespace lockstep::nn {

/// Note [Checkpoints]
/// A training checkpoint is a safetensors file. The weights stand under their own names, so any reader of the format
/// finds them; the optimizer's tensors stand under kOptimizerPrefix (those of a second one behind "1." there);
/// position, seed and settings are metadata strings. Data order and random numbers are functions of seed and position
/// and need no state. So a run that is resumed goes on with the same bits as one that was never stopped: training steps
/// number their random keys from the step on that was loaded, and a loop that uses none of them draws its random
/// numbers under RandomKeyGuard(step, shard). Where several calls of a step make one of the optimizer (no_sync()), the
/// loop numbers them itself, by a RandomKeyGuard around each.
///
/// The metadata keeps the names of each optimizer's parameters too: a model that declares its layers in another order,
/// or an optimizer that was given them in another, finds the state of each parameter all the same. Files without these
/// names, of older versions, are read by the parameters' places.

/// Where a run stands.
struct TrainingState {
  std::uint64_t seed = 0;           ///< of manual_seed() and the data's order
  std::int64_t step = 0;            ///< optimizer steps done
  std::int64_t epoch = 0;           ///< epochs done
  std::int64_t logical_shards = 0;  ///< V; 0: not in lockstep mode
  std::string fingerprint = {};     ///< of build and libraries; equal bits are promised for equal ones alone
  Metadata extra = {};              ///< what else the program wants back, such as the model's name
  /// The same of tensors. Not filled on reading: see read_extra_tensor().
  std::vector<NamedTensor> tensors = {};
};

/// Throws Error if `path` holds a checkpoint of a later step than `step`. Such a file was not resumed from: a run that
/// goes on from it is never behind it. For programs to call before the first step; save_checkpoint() does so too.
void require_no_later_checkpoint(const std::string& path, std::int64_t step);

/// Writes weights, the optimizer's state, the scheduler's (the position of an LRScheduler, what a ReduceLROnPlateau has
/// seen), if there is one, and `state`. Errors as save_safetensors(), and as require_no_later_checkpoint(): a run that
/// has begun anew by mistake does not destroy what another has reached. What is no checkpoint is replaced.
void save_checkpoint(const std::string& path, const Module& module, const optim::Optimizer& optimizer,
                     const TrainingState& state, const optim::Scheduler* scheduler = nullptr);
/// The same for a training with several optimizers: `save_checkpoint(path, net, {sgd, adam}, state)`.
void save_checkpoint(const std::string& path, const Module& module,
                     const std::vector<std::reference_wrapper<const optim::Optimizer>>& optimizers,
                     const TrainingState& state, const std::vector<const optim::Scheduler*>& schedulers = {});

namespace detail {
/// What save_checkpoint() writes, and under which names; the values of tensors need not be there.
struct CheckpointContent {
  std::vector<NamedTensor> tensors;
  Metadata metadata;
};
CheckpointContent checkpoint_content(const Module& module, const std::vector<optim::OptimizerState>& optimizers,
                                     const TrainingState& state,
                                     const std::vector<const optim::Scheduler*>& schedulers);
}  // namespace detail

/// The settings of a checkpoint, without its tensors: to check seed, V and fingerprint before anything is loaded.
/// Throws Error for a damaged file or one that is no checkpoint.
TrainingState read_training_state(const std::string& path);

/// The names of TrainingState::tensors in a checkpoint, and one of them, on the CPU. Errors as SafetensorsFile::read().
std::vector<std::string> extra_tensors(const SafetensorsFile& file);
Tensor read_extra_tensor(const SafetensorsFile& file, const std::string& name);

/// Reads all of it back, in place. Throws Error if a name, shape or dtype does not fit the module, if the optimizer is
/// of another type or has other settings or parameters of other names, if the file holds more optimizers than this one,
/// or if `scheduler` is given and was not saved, or one of the other kind was. Nothing has changed then.
TrainingState load_checkpoint(const std::string& path, Module& module, optim::Optimizer& optimizer,
                              optim::Scheduler* scheduler = nullptr);
/// The same for several optimizers and schedulers, in the order in which they were saved.
TrainingState load_checkpoint(const std::string& path, Module& module,
                              const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                              const std::vector<optim::Scheduler*>& schedulers = {});

}  // namespace lockstep::nn
