#pragma once

// Loops over the runs of an optimizer step on the CPU. For .cpp files only.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/thread_pool.h"
#include "nn/optim/optimizer.h"

namespace lockstep::optim {

/// Calls body(run, begin, end) for pieces of runs, in parallel. Elements are counted through all runs, so that many
/// small tensors share a block.
template <typename Body>
void for_each_piece(const std::vector<Optimizer::Run>& runs, Body&& body) {
  constexpr std::int64_t kBlock = 16384;
  std::vector<std::int64_t> starts(runs.size() + 1, 0);
  for (std::size_t r = 0; r < runs.size(); ++r) starts[r + 1] = starts[r] + runs[r].numel;
  parallel_for(starts.back(), kBlock, [&](std::int64_t begin, std::int64_t end) {
    auto r = static_cast<std::size_t>(std::upper_bound(starts.begin(), starts.end(), begin) - starts.begin()) - 1;
    for (; begin < end; ++r) {
      const std::int64_t stop = std::min(end, starts[r + 1]);
      body(runs[r], begin - starts[r], stop - starts[r]);
      begin = stop;
    }
  });
}

}  // namespace lockstep::optim
