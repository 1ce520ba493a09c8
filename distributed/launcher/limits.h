#pragma once

#include <cstddef>

namespace lockstep::launcher {

inline constexpr int kMaxWorkers = 4096;  ///< on one node
inline constexpr int kMaxNodes = 65536;
inline constexpr std::size_t kMaxLineBytes = 65536;  ///< longer lines of a worker are cut into several
inline constexpr std::size_t kKeptLines = 12;        ///< of a worker's stderr, for the report of its failure

}  // namespace lockstep::launcher
