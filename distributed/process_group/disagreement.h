#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// How ranks differ that are to give the same text.
struct Disagreement {
  std::string ranks;     ///< whose texts are not rank 0's: "1, 3"
  std::string of_rank0;  ///< its text
  int other = 0;         ///< the first of `ranks`
  std::string of_other;  ///< and its text
};

/// Nothing if all ranks give the same text. A collective: lengths and checksums are compared, and texts travel only
/// where these differ.
std::optional<Disagreement> find_disagreement(std::string_view own, ProcessGroup& group);

}  // namespace lockstep::distributed
