#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/distributed/failure/peer_state.h"

namespace lockstep::distributed {

/// Why an operation failed here.
struct OperationFailure {
  std::string operation;  ///< its description; empty if this rank was in none
  std::string cause;
  int peer = -1;           ///< the rank that was waited for, if known
  int reporter = -1;       ///< the rank that reported the failure, where this one has only heard of it
  Way missed = Way::none;  ///< by which it waited for that peer in vain
};

/// How a cause begins that ranks found in a group which was split from this one: "in the group of ranks 2, 3: ...".
inline constexpr std::string_view kInPart = "in the group of ";

/// How a cause begins that needs nobody's answer: what a rank was sent is not what it expects.
inline constexpr std::string_view kMismatchedMessages = "mismatched messages: ";

/// What one rank knows of another when it has asked everybody.
struct Observation {
  std::optional<PeerState> state;
  bool answered = false;  ///< `state` is its answer to the failure, so it lives
  ProcessFate fate = ProcessFate::unknown;
};

/// What is told of a failure.
struct Diagnosis {
  /// One sentence, the same on every rank that has heard the same: who is the cause, and what the others wait for.
  /// "rank 2 is alive, but still after all_reduce #17 (...) at step 41; ranks 0, 1, 3 wait in all_reduce #18 (...)"
  std::string headline;
  /// Who or what is the cause: "rank 2", "the link between ranks 1, 2"; empty if nobody can tell.
  std::string culprits;
  /// What the rank that reported the failure says of it; empty if it was this one, or says nothing.
  std::string reported;
  /// One line for each rank, or for several in the same place, and what to do.
  std::string report;
  /// The ranks that answered, in order: who reports is the first.
  std::vector<int> alive;
};

/// `observations` are by rank, this one's own among them (answered). `store_error` is not empty if the store was lost
/// on the way, so that nobody could answer. `ranks`: the job's number of each, which is told; empty: the same.
Diagnosis diagnose(const OperationFailure& failure, const std::vector<Observation>& observations,
                   const std::string& store_error, std::int64_t now_ms, const std::vector<int>& ranks = {});

}  // namespace lockstep::distributed
