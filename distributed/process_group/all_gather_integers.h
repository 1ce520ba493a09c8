#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// Each rank's integers, one rank's after the other's, on all of them. A collective that waits, on the CPU; every rank
/// gives as many.
std::vector<std::int64_t> all_gather_integers(std::span<const std::int64_t> own, ProcessGroup& group);

/// Element r is rank r's.
inline std::vector<std::int64_t> all_gather_integers(std::int64_t own, ProcessGroup& group) {
  return all_gather_integers(std::span(&own, 1), group);
}

/// Row r is rank r's.
template <std::size_t N>
std::vector<std::array<std::int64_t, N>> all_gather_integers(const std::array<std::int64_t, N>& own,
                                                             ProcessGroup& group) {
  const std::vector<std::int64_t> all = all_gather_integers(std::span<const std::int64_t>(own), group);
  std::vector<std::array<std::int64_t, N>> rows(all.size() / N);
  std::memcpy(rows.data(), all.data(), all.size() * sizeof(std::int64_t));
  return rows;
}

}  // namespace lockstep::distributed
