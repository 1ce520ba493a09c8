#pragma once

// For .cpp files only.

#include <vector>

#include "lockstep/distributed/parallel/reduction/communication_hook.h"
#include "lockstep/nn/safetensors.h"

namespace lockstep::training {

/// A collective: the state of the hook on every rank, under names that tell the ranks apart, on rank 0; nothing on the
/// others. `group`: null for one process.
std::vector<nn::NamedTensor> gather_hook_state(const distributed::CommunicationHook& hook,
                                               distributed::ProcessGroup* group);

/// Gives the hook this rank's state from a checkpoint. On another number of ranks than it was saved on, each gets the
/// mean of what the ranks had. False: the checkpoint has none. Throws Error as CommunicationHook::load_state().
bool load_hook_state(distributed::CommunicationHook& hook, const nn::SafetensorsFile& file,
                     const distributed::ProcessGroup* group);

}  // namespace lockstep::training
