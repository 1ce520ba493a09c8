#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/nn/checkpoint.h"

namespace lockstep::distributed {

/// nn::save_checkpoint() for a job: rank 0 writes. A collective, so that all ranks throw the same Error if the file
/// cannot be written or holds a later step, or if an optimizer has other parameters than the module's. The module may
/// be a part of the one that a step trains. The file is the same as one process's. What is divided over ranks (ZeRO)
/// each rank writes its part of, into that one file, so that none needs room for the whole; where a rank cannot see
/// rank 0's file, or there are `state`.tensors, which are rank 0's, it comes together on rank 0.
void save_checkpoint(const std::string& path, const nn::Module& module, optim::Optimizer& optimizer,
                     const nn::TrainingState& state, ProcessGroup& group, const optim::Scheduler* scheduler = nullptr);

/// The same for several optimizers, see nn::save_checkpoint().
void save_checkpoint(const std::string& path, const nn::Module& module,
                     const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                     const nn::TrainingState& state, ProcessGroup& group,
                     const std::vector<const optim::Scheduler*>& schedulers = {});

/// save_checkpoint() of what is divided, by the ranks together. False, with nothing done: nothing is divided, or some
/// rank does not see rank 0's file. A collective.
bool save_checkpoint_by_shares(const std::string& path, const nn::Module& module,
                               const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                               const nn::TrainingState& state, ProcessGroup& group,
                               const std::vector<const optim::Scheduler*>& schedulers);

/// nn::load_checkpoint() for a job: rank 0 reads, all ranks load the same bytes, wherever they run; `path` is that of
/// rank 0. A collective. Errors as nn::load_checkpoint(), on every rank.
nn::TrainingState load_checkpoint(const std::string& path, nn::Module& module, optim::Optimizer& optimizer,
                                  ProcessGroup& group, optim::Scheduler* scheduler = nullptr);
/// The same for several optimizers.
nn::TrainingState load_checkpoint(const std::string& path, nn::Module& module,
                                  const std::vector<std::reference_wrapper<optim::Optimizer>>& optimizers,
                                  ProcessGroup& group, const std::vector<optim::Scheduler*>& schedulers = {});

}  // namespace lockstep::distributed
