#pragma once

// Sizes that decide how a product is cut, packed and shared. None of them matters to the bits. For .cpp files only.

#include <algorithm>
#include <cstdint>

namespace lockstep::cpu::gemm_detail {

inline constexpr double kTaskFlops = 1.5e5;         // of a task of parallel_for, at least: 0.7 to 1.5 us
inline constexpr double kFlopsOfByte = 3;           // operations in the time that a byte takes to come from a far cache
inline constexpr double kLargeTaskFlops = 16e6;     // where there is a task for each thread
inline constexpr std::int64_t kTasksPerThread = 3;  // so that threads which are held up do not hold up the others
inline constexpr std::int64_t kLargeCache = 2 << 20;  // bytes of a second level
inline constexpr std::int64_t kGroupColumns = 2048;
inline constexpr std::int64_t kGroupRows = 56;         // rows of a transposed a packed at a time
inline constexpr std::int64_t kLateGroup = 128 << 10;  // bytes of b that are packed at a time where it comes slowly
inline constexpr std::int64_t kStep = 128;             // along k, of a panel of b that a single panel of rows uses
inline constexpr std::int64_t kShort = 48;             // k for which nothing is packed
inline constexpr std::int64_t kSecondWay = 128 << 10;  // bytes of a way of a second-level cache, at most
inline constexpr std::int64_t kManyColumns = 256;      // for which a transposed a is packed sooner
inline constexpr std::int64_t kPanelsAtOnce = 4096;  // elements of a result that one call of a kernel computes, at most
inline constexpr std::int64_t kFewPanels = 6;        // of rows, for which b is not packed
inline constexpr std::int64_t kFewAlignedPanels = 22;  // of a near b whose vectors are whole lines, where far_is_slow()
inline constexpr std::int64_t kFarRows = 12;           // of a result, for which a far b is read along its rows
inline constexpr std::int64_t kFewColumns = 16;        // of a result whose far a is read as b
inline constexpr std::int64_t kGap = 16;               // elements between rows that are copied, to part them in a cache
inline constexpr std::int64_t kPanelColumns = 64;      // the widest panel of b
inline constexpr std::int64_t kMaxLanes = 16;          // of a vector
inline constexpr std::int64_t kLocalElements = 4096;   // of work space on the stack
inline constexpr std::int64_t kStreamedElements = 4096;    // of sums that stay in a cache of the first level, at most
inline constexpr std::int64_t kFarBytes = 1 << 20;         // that do not stay in a core's own caches
inline constexpr std::int64_t kMemoryBytes = 12 << 20;     // more than a third level, which cores share, keeps of one's
inline constexpr std::int64_t kLeastShared = 128 << 10;    // elements; fewer are packed by each task again
inline constexpr std::int64_t kSharedElements = 16 << 20;  // packed for all tasks together, at most
inline constexpr std::int64_t kPackElements = 16 << 10;    // that a task packs, about

/// Bytes of a core's second-level cache, or of a usual one if the system does not say.
std::int64_t second_level_cache();

/// Whether what does not fit the second level comes slowly: processors that have a large one have a third level that is
/// far.
inline bool far_is_slow() {
  return second_level_cache() >= kLargeCache;
}

/// Whether a matrix of so many bytes comes from beyond a core's own caches.
inline bool is_far(std::int64_t bytes) {
  return bytes >= kFarBytes && bytes >= second_level_cache();
}

/// Whether so many rows, `row_bytes` apart, keep their places in the second level until they are used again.
inline bool keep_second_places(std::int64_t rows, std::int64_t row_bytes) {
  const std::int64_t apart = row_bytes & -row_bytes;
  return rows * (apart < kSecondWay ? apart : kSecondWay) <= second_level_cache();
}

/// Whether rows so many bytes apart share places in a cache as rows a multiple of `unit` apart do: of rows that are
/// each moved by 12 bytes more, sixteen lie in the places of three lines.
inline bool share_places(std::int64_t row_bytes, std::int64_t unit) {
  constexpr std::int64_t kMoved = 12;
  const std::int64_t beyond = row_bytes % unit;
  return std::min(beyond, unit - beyond) <= kMoved;
}

/// Whether m rows, which read a far b of `bytes` once, read it slowly by tiles, which take a little of each of its
/// rows: where it comes from memory, which sends lines in order, where these rows have the same places in a cache, or
/// come slowly anyway. `streaming_rows`: the most that a kernel reads along b's rows. Where that is many, tiles of few
/// rows have registers left for enough chains, and are slow only where they hold nearly as many, and each step takes
/// them to other pages.
inline bool tiles_read_slowly(std::int64_t m, std::int64_t bytes, std::int64_t row_bytes, int lanes,
                              int streaming_rows) {
  constexpr std::int64_t kLongRow = 16 << 10;
  if (m == 1 || (m <= streaming_rows && bytes >= kMemoryBytes)) return true;
  if (m == 2) return share_places(row_bytes, 128 * lanes);
  if (streaming_rows <= 2) return false;
  if (streaming_rows > 4) return far_is_slow() && m >= 6 && m <= streaming_rows && row_bytes >= kLongRow;
  return far_is_slow() ? m <= kFarRows : m <= streaming_rows && row_bytes % 4096 == 0;
}

/// Whether the lines of a panel's steps, `bytes` apart, do not stay in the first level while it is used. The lines of a
/// panel as it lies are more than that holds; it costs little where the second level is fast.
inline bool loses_places_of_steps(std::int64_t bytes) {
  return bytes % 1024 == 0 || (far_is_slow() && bytes > 1024);
}

/// Bytes of b that are packed at a time: what stays in the second level where the third is slow, else what halves the
/// number of groups.
inline std::int64_t group_bytes() {
  return far_is_slow() ? second_level_cache() / 2 : kLargeCache;
}

}  // namespace lockstep::cpu::gemm_detail
