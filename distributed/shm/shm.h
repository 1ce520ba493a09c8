#pragma once

#include <string>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed::shm {

/// A group, or the reason why there is none.
struct Attempt {
  ProcessGroupPtr group;
  std::string obstacle;
};

/// Makes a process group on memory that all ranks share, if they can: at most 64, of one user, on one machine, and in
/// the same PID and network namespaces. Otherwise there is no group, and the same obstacle on every rank. Ranks in
/// different network namespaces count as machines of their own. Collective: blocks until all ranks have come. `store`
/// must be empty of keys of other groups (see PrefixStore). Throws Error, naming the ranks that did not come by the
/// deadline.
Attempt try_process_group(const StorePtr& store, const ProcessGroupOptions& group);

/// The same, but an obstacle is an Error.
ProcessGroupPtr make_process_group(const StorePtr& store, const ProcessGroupOptions& group);

}  // namespace lockstep::distributed::shm
