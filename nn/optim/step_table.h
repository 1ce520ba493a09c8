#pragma once

// What an optimizer's kernel reads from the device's memory; see Note [Optimizers].

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Elements that a block updates at a time.
inline constexpr std::int64_t kStepChunk = 2048;

struct StepTableRun {
  Optimizer::Run run;
  std::int64_t first_chunk;  ///< chunks are counted through all runs
};

/// Begins the table; its runs follow.
struct StepTable {
  std::int64_t runs;
  std::int64_t chunks;
};

static_assert(sizeof(StepTable) % 8 == 0 && sizeof(StepTableRun) % 8 == 0);

inline std::int64_t step_chunks(std::int64_t numel) {
  return (numel + kStepChunk - 1) / kStepChunk;
}

/// 64-bit words that a table of `runs` runs takes.
inline std::int64_t step_table_words(std::size_t runs) {
  return static_cast<std::int64_t>((sizeof(StepTable) + runs * sizeof(StepTableRun)) / 8);
}

}  // namespace lockstep::optim
