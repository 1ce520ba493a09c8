#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::distributed {

/// Note [Shard tree]
/// Lockstep mode adds up what V logical shards contribute (V a power of two) along one fixed binary tree. Shard i is
/// leaf i; node `index` of `level` covers the leaves [index * 2^level, (index + 1) * 2^level) and is the sum of its two
/// children, left + right. Floating-point addition does not associate, but every pairing is fixed here, so the root's
/// bits depend on the leaves alone, never on who added what.
///
/// A worker holds a contiguous range of leaves. What it can add by itself are the nodes that lie inside the range; the
/// largest of them, its *units*, are what travels. There are at most 2 log2(V) of them, and exactly one for every
/// worker if the number of workers is a power of two.
struct TreeNode {
  int level = 0;
  std::int64_t index = 0;

  friend bool operator==(const TreeNode&, const TreeNode&) = default;
};

/// True if `right` is the right sibling of `left`: the two can be added.
bool are_siblings(const TreeNode& left, const TreeNode& right);
TreeNode parent(const TreeNode& node);

/// Consecutive shards [begin, end).
struct ShardRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

/// Throws Error, naming `what`, unless `shards` is a power of two from 1 to 2^20 and at least `workers`.
void check_shards(std::int64_t shards, int workers, const char* what);

/// The shards of one worker: contiguous, sizes that differ by one at most, larger ones first.
ShardRange shards_of_worker(std::int64_t shards, int workers, int worker);

/// The largest nodes inside a range, from left to right.
std::vector<TreeNode> tree_units(const ShardRange& range);

/// Adds values up along the tree while they come in, leaf by leaf or node by node, from left to right. Holds at most
/// log2 of their number (and one more for each unit of a range that is no single node).
template <typename Value>
class TreeStack {
 public:
  struct Entry {
    TreeNode node;
    Value value;
  };

  /// `add(left, right)` adds right to left.
  template <typename Add>
  void push(TreeNode node, Value value, Add&& add) {
    while (!entries_.empty() && are_siblings(entries_.back().node, node)) {
      Entry left = std::move(entries_.back());
      entries_.pop_back();
      add(left.value, value);
      node = parent(node);
      value = std::move(left.value);
    }
    entries_.push_back({node, std::move(value)});
  }

  const std::vector<Entry>& entries() const { return entries_; }
  void clear() { entries_.clear(); }

 private:
  std::vector<Entry> entries_;
};

}  // namespace lockstep::distributed
