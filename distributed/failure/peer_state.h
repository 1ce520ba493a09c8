#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/distributed/failure/process_identity.h"
#include "lockstep/distributed/operation/way.h"

namespace lockstep::distributed {

/// What a rank was last seen doing, as it publishes it in the store.
struct PeerState {
  /// A collective that the rank has begun.
  struct Call {
    std::uint64_t number = 0;
    std::uint64_t fingerprint = 0;
    std::string description;
  };

  std::uint64_t called = 0;       ///< collectives begun; the current one, if running, is number called - 1
  bool running = false;           ///< within that collective now
  std::uint64_t fingerprint = 0;  ///< of that collective, and of those before it where the backend goes by them
  std::string collective;         ///< its description; empty if there was none yet
  std::string point_to_point;     ///< the last send, recv or exchange begun; empty if none
  std::string elsewhere;          ///< the collective it is in of a group that was split from this one; empty if none
  std::int64_t step = -1;         ///< training step; -1 if the program does not say
  bool left = false;              ///< has taken its leave of the group
  std::string ended_by;           ///< its own doing, if it gave up by itself: "threw: ...", "aborted: ..."
  std::string exception;          ///< that its last step ended with; empty if none
  bool caught = false;            ///< it has gone on after that, or left the group in good order
  std::string trouble;            ///< why it gave up; empty if it has not
  int lost_peer = -1;             ///< the rank that it waited for when it gave up, by itself; -1 if none
  Way missed = Way::none;         ///< by which it waited for that one
  std::int64_t since_ms = 0;      ///< when this last changed, counted from the beginning of its watch over the others
  ProcessIdentity process;
  std::vector<Call> calls;  ///< the last collectives, oldest first; told by a rank that has failed or left

  bool is_ended_by_exception() const { return ended_by.starts_with("threw"); }
  std::string encode() const;
  /// Throws Error if `text` is no state.
  static PeerState decode(std::string_view text);
};

/// "rank 3", "ranks 0, 2-5"; `ranks` in rising order.
std::string ranks_text(const std::vector<int>& ranks);

}  // namespace lockstep::distributed
