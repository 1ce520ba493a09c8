#pragma once

#include <string>

#include "lockstep/core/device.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed::nccl {

/// True if this build has the NCCL backend.
bool is_available();
/// Why no executor can be made here, as part of a sentence: no such build, no library, no device; empty if one can.
std::string why_unavailable();

/// Note [NCCL executor]
/// Operations on CUDA tensors, one rank a device, on a stream of their own. An operation starts when what the calling
/// thread has put on its current stream so far is done; Work::wait() makes the caller's current stream wait for the
/// operation, and does not block the host (but for barrier(), which does). So it can be captured in a CUDA graph; what
/// is captured is watched when the graph is launched, see ProcessGroup::watch().
///
/// The communicator is non-blocking: no call of NCCL waits for another rank. A thread watches what is under way: the
/// communicator's asynchronous errors, the deadline of each operation from the moment when it starts on the device, and
/// the failure of the group, which its peer monitor may have found (Note [Peer monitor]). A failure aborts the
/// communicator, so that kernels which wait for a rank that is gone come to an end, and is told the other ranks through
/// the store. A communicator is destroyed in good order only if nothing has failed, and no captured graph with its
/// operations lives on (Note [Communicator]).
///
/// Averages are sums, divided afterwards by us, but for half types, whose sums may overflow: NCCL divides those first.
/// Sums along the shard tree gather all units everywhere and add them in the tree's order. Operations between two ranks
/// run in the order of issue on each; use exchange() where both send.

/// Adds such an executor to a group that serves CPU tensors. `store` must be empty of keys of other groups. Before NCCL
/// starts the ranks compare their devices: two ranks on one device are an error that names both, unless NCCL has been
/// told to allow it (NCCL_MULTI_RANK_GPU_ENABLE=1, or hosts told apart by NCCL_HOSTID). Collective. Throws Error by the
/// group's deadline.
void add_executor(ProcessGroup& group, const StorePtr& store, Device device);

}  // namespace lockstep::distributed::nccl
