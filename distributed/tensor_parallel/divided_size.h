#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/distributed/collectives/shard_tree.h"

namespace lockstep::distributed {

/// Consecutive rows, outputs or inputs of a layer.
struct SizeRun {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// Note [Divided sizes]
/// A size (rows of a vocabulary, outputs, inputs) is cut into T runs, one for each shard; if T does not divide it, the
/// first `size % T` runs have one more than the others. So where a run lies follows from the size and T alone, and a
/// rank has the runs of its shards, which are neighbours. As the larger runs come first and all ranks have as many
/// shards, the same rule cuts a rank's part into its shards' runs: who computes with a part needs its size, not that of
/// the whole.
class DividedSize {
 public:
  DividedSize(std::int64_t size, std::int64_t count) : size_(size), count_(count) {}

  std::int64_t count() const { return count_; }
  bool is_even() const { return size_ % count_ == 0; }
  SizeRun run(std::int64_t i) const { return runs({i, i + 1}); }
  /// Several that are neighbours, as one.
  SizeRun runs(const ShardRange& range) const { return {begin(range.begin), begin(range.end) - begin(range.begin)}; }

 private:
  std::int64_t begin(std::int64_t i) const { return size_ / count_ * i + std::min(i, size_ % count_); }

  std::int64_t size_, count_;
};

}  // namespace lockstep::distributed
