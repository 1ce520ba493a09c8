#pragma once

// What an optimizer's kernel reads from the device's memory; see Note [Optimizers].

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::optim {

/// Elements that a block updates at a time.
inline constexpr std::int64_t kStepChunk = 2048;

struct StepTableRun {
  Optimizer::Run run;
  std::int64_t first_chunk;  ///< chunks are counted through all runs
};

/// Launches of a captured step that may be under way when the host prepares the next one, that one counted.
inline constexpr int kMostAhead = 4;
/// What Optimizer::scalars() says of one step.
inline constexpr int kStepScalars = static_cast<int>(std::extent_v<decltype(Optimizer::Run::scalars)>);

/// Begins the table; its runs follow.
struct StepTable {
  std::int64_t runs;
  std::int64_t chunks;
  /// Null, or the words of a GradScaler, by which this step may be left out; see Note [Scaling on the device].
  const double* scaler;
  double known_skips;  ///< how many steps were left out, as far as the runs' scalars know
  /// Of each run kMostAhead - 1 times kStepScalars: its scalars if one step more was left out, two more, ...
  const double* later;
};

static_assert(sizeof(StepTable) % 8 == 0 && sizeof(StepTableRun) % 8 == 0);

inline std::int64_t step_chunks(std::int64_t numel) {
  return (numel + kStepChunk - 1) / kStepChunk;
}

/// 64-bit words that a table of `runs` runs takes.
inline std::int64_t step_table_words(std::size_t runs) {
  return static_cast<std::int64_t>((sizeof(StepTable) + runs * sizeof(StepTableRun)) / 8);
}

/// Those of StepTable::later.
inline std::int64_t later_scalars_words(std::size_t runs) {
  return static_cast<std::int64_t>(runs) * (kMostAhead - 1) * kStepScalars;
}

}  // namespace lockstep::optim
