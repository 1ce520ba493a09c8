#pragma once

#include <string>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed::gloo {

struct Options {
  /// Address of this machine that the other ranks can reach.
  std::string address = "127.0.0.1";
  /// Name of a network interface, such as "eth0"; if set, its address is used instead.
  std::string interface = {};
};

/// True if this build has the Gloo backend.
bool is_available();

/// Connects every rank with every other through `store`, which must be empty of keys of other groups (see PrefixStore),
/// and makes a process group on these connections. Collective: blocks until all ranks have come. Throws Error, naming
/// the ranks that did not come by the deadline, or if this build has no Gloo.
ProcessGroupPtr make_process_group(const StorePtr& store, const ProcessGroupOptions& group,
                                   const Options& options = {});

}  // namespace lockstep::distributed::gloo
