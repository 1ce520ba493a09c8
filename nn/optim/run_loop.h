#pragma once

// Loops over the runs of an optimizer step on the CPU. For .cpp files only.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/nn/optim/optimizer.h"

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

/// Updates the runs of a step: `Update` is made from a run's scalars; update(value, gradient, state) gives a
/// parameter's new value and changes its kStates elements of state.
template <typename T, int kStates, typename Update>
void update_runs(const std::vector<Optimizer::Run>& runs) {
  using C = compute_t<T>;
  for_each_piece(runs, [](const Optimizer::Run& run, std::int64_t begin, std::int64_t end) {
    const Update update(run.scalars);
    T* __restrict p = static_cast<T*>(run.parameter);
    const T* __restrict g = static_cast<const T*>(run.gradient);
    C* __restrict first = static_cast<C*>(run.state[0]);
    C* __restrict second = static_cast<C*>(run.state[1]);
    C* __restrict third = static_cast<C*>(run.state[2]);
    for (std::int64_t i = begin; i < end; ++i) {
      C state[Optimizer::kMaxState] = {kStates > 0 ? first[i] : C(0), kStates > 1 ? second[i] : C(0),
                                       kStates > 2 ? third[i] : C(0)};
      p[i] = static_cast<T>(update(static_cast<C>(p[i]), static_cast<C>(g[i]), state));
      if constexpr (kStates > 0) first[i] = state[0];
      if constexpr (kStates > 1) second[i] = state[1];
      if constexpr (kStates > 2) third[i] = state[2];
    }
  });
}

}  // namespace lockstep::optim
