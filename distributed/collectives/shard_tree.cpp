#include "lockstep/distributed/collectives/shard_tree.h"

#include <algorithm>
#include <bit>

#include "lockstep/core/check.h"

namespace lockstep::distributed {

bool are_siblings(const TreeNode& left, const TreeNode& right) {
  return left.level == right.level && left.index % 2 == 0 && right.index == left.index + 1;
}

TreeNode parent(const TreeNode& node) {
  return {node.level + 1, node.index / 2};
}

void check_shards(std::int64_t shards, int workers, const char* what) {
  LOCKSTEP_CHECK(
      shards >= 1 && shards <= (std::int64_t{1} << 20) && std::has_single_bit(static_cast<std::uint64_t>(shards)),
      "[{}] the number of logical shards is {}; expected a power of two from 1 to 2^20", what, shards);
  LOCKSTEP_CHECK(shards >= workers,
                 "[{}] {} workers cannot share {} logical shards; use at most {} workers, or more shards from the "
                 "start of the training",
                 what, workers, shards, shards);
}

ShardRange shards_of_worker(std::int64_t shards, int workers, int worker) {
  const auto begin = [&](std::int64_t w) { return shards / workers * w + std::min<std::int64_t>(w, shards % workers); };
  return {begin(worker), begin(worker + 1)};
}

std::vector<TreeNode> tree_units(const ShardRange& range) {
  std::vector<TreeNode> units;
  for (std::int64_t at = range.begin; at < range.end;) {
    // The largest node that begins here and ends inside.
    int level = at == 0 ? 62 : std::countr_zero(static_cast<std::uint64_t>(at));
    level = std::min(level, static_cast<int>(std::bit_width(static_cast<std::uint64_t>(range.end - at))) - 1);
    units.push_back({level, at >> level});
    at += std::int64_t{1} << level;
  }
  return units;
}

}  // namespace lockstep::distributed
