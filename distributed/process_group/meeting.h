#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Two processes have the same rank, as the later one finds out. It must tell the others, which may wait elsewhere:
/// refuse_meeting().
class SameRankError : public Error {
 public:
  using Error::Error;
};

/// Counts the ranks in through `store`, which must be empty of keys of other groups. Blocks until all have come. Throws
/// Error, beginning with [`backend`], that names the ranks which did not come by the deadline, or a rank that came
/// twice (SameRankError), or says why they cannot meet: Note [Why ranks cannot meet].
void meet(Store& store, const ProcessGroupOptions& group, std::string_view backend);

/// A rank's place among those of its machine.
struct LocalPlace {
  int rank = 0;
  int world_size = 1;
};

/// What tells this machine, or this container with a name and processes of its own, from others.
std::string own_machine();

/// Tells the other ranks which machine this one is on. Those that `wait` until all have done so learn their place, in
/// the order of ranks; the others' is empty. Every rank calls it, in a `store` of its own. Throws as meet() does.
std::optional<LocalPlace> find_local_place(Store& store, const ProcessGroupOptions& group, std::string_view machine,
                                           bool wait);

/// The value of `key`, which `rank`, counted in by meet(), sets next. Throws Error that names the rank when it does not
/// within the timeout, or as soon as its process is seen to be gone.
std::string get_from(Store& store, const ProcessGroupOptions& group, std::string_view backend, int rank,
                     const std::string& key);

/// The ranks, counted in by meet(), whose processes are seen to be gone or stopped: "rank 1 is gone: process 4711 on
/// host7 has ended"; empty if there is none, or nothing can be seen.
std::string lost_ranks(Store& store, const ProcessGroupOptions& group);

}  // namespace lockstep::distributed
