#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "lockstep/core/thread_pool.h"

namespace lockstep {

/// Runs body(begin, end) -> std::array<double, N> for each block of [0, count) in parallel and adds the results in
/// block order, so that the sums do not depend on the number of threads. For .cpp files only.
template <std::size_t N, typename Body>
std::array<double, N> block_sums(std::int64_t count, std::int64_t block, Body&& body) {
  std::array<double, N> total{};
  if (count <= block) {
    if (count > 0) total = body(std::int64_t{0}, count);
    return total;
  }
  std::vector<std::array<double, N>> partials(static_cast<std::size_t>((count + block - 1) / block));
  parallel_for(count, block, [&](std::int64_t begin, std::int64_t end) {
    partials[static_cast<std::size_t>(begin / block)] = body(begin, end);
  });
  for (const auto& partial : partials)
    for (std::size_t n = 0; n < N; ++n) total[n] += partial[n];
  return total;
}

}  // namespace lockstep
