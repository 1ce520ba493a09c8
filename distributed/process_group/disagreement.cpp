#include "lockstep/distributed/process_group/disagreement.h"

#include <array>
#include <cstdint>

#include "lockstep/core/checksum.h"
#include "lockstep/distributed/process_group/all_gather_integers.h"

namespace lockstep::distributed {

std::optional<Disagreement> find_disagreement(std::string_view own, ProcessGroup& group) {
  if (group.world_size() == 1) return std::nullopt;
  Checksum sum;
  sum.update(own.data(), own.size());
  const std::array mine{static_cast<std::int64_t>(own.size()), static_cast<std::int64_t>(sum.value())};
  const auto all = all_gather_integers(mine, group);
  Disagreement found;
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    if (found.ranks.empty())
      found.other = static_cast<int>(rank);
    else
      found.ranks += ", ";
    found.ranks += std::to_string(rank);
  }
  if (found.ranks.empty()) return std::nullopt;
  found.of_rank0 = group.broadcast_object(own);
  found.of_other = group.broadcast_object(own, found.other);
  return found;
}

}  // namespace lockstep::distributed
