#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/distributed/failure/diagnosis.h"

namespace lockstep::distributed {

/// Two ranks of which one has waited for the other in vain, though both live and have come to the same collective: what
/// is between them is at fault, or, inside a machine, the time was too short for the work.
struct BrokenLink {
  int from = 0;  ///< the rank that hears nothing
  int to = 0;
  bool mutual = false;  ///< `to` says the same of `from`, and `from` is the lower one
  Way way = Way::network;

  friend bool operator==(const BrokenLink&, const BrokenLink&) = default;
};

/// Those that explain why no rank is missing, and yet they do not meet; empty if something else may explain it: a rank
/// that is not in a collective, has gone, or came to one late.
std::vector<BrokenLink> broken_links(const std::vector<Observation>& observations, std::int64_t now_ms);

/// "ranks 1, 2 do not hear each other, although all ranks live and reach the store"; `ranks` as diagnose() takes them.
std::string text_of(const std::vector<BrokenLink>& links, const std::vector<int>& ranks);
/// What is to blame: "the link between ranks 1, 2".
std::string culprits_of(const BrokenLink& link, const std::vector<int>& ranks);
/// What to do about the first.
std::string remedy_of(const std::vector<BrokenLink>& links, const std::vector<Observation>& observations,
                      const std::vector<int>& ranks);

}  // namespace lockstep::distributed
