#pragma once

#include <cstdint>

namespace lockstep::data {

/// A half-open range of positions.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Part `part` of [0, count) cut into `parts` contiguous ranges whose sizes differ by at most one, the larger ones
/// first. Parts beyond `count` are empty. This is how the ranks of a job share a global batch: every sample belongs to
/// exactly one of them. Throws Error unless count >= 0 and 0 <= part < parts.
Range partition(std::int64_t count, std::int64_t parts, std::int64_t part);

/// Positions of global batch `step` in an epoch's order of `count` samples; the last batch may be short.
/// Throws Error unless batch_size > 0 and the step lies inside the epoch.
Range batch_range(std::int64_t count, std::int64_t batch_size, std::int64_t step);

/// Number of batches in an epoch of `count` samples.
std::int64_t batch_count(std::int64_t count, std::int64_t batch_size, bool drop_last);

}  // namespace lockstep::data
