// The fixed tree of lockstep mode: its shape, its sums, and that they have the same bits for every number of ranks.

#include "lockstep/distributed/collectives/shard_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/collectives/tree_sum.h"
#include "tests/distributed/ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::Link;
using testing::run_ranks;

std::vector<char> bits_of(const Tensor& tensor) {
  const char* data = static_cast<const char*>(tensor.raw_data());
  return {data, data + tensor.nbytes()};
}

// Numbers of very different sizes, whose sum depends on the order of the additions.
Tensor leaf(std::int64_t shard, std::int64_t count, DType dtype) {
  const RandomKeyGuard key(7, static_cast<std::uint32_t>(shard));
  Tensor values = randn({count});
  float* data = values.data<float>();
  for (std::int64_t i = 0; i < count; ++i) data[i] *= std::ldexp(1.0f, static_cast<int>((i + shard) % 13) - 6);
  return cast_values(values, dtype);
}

Tensor add(const Tensor& a, const Tensor& b) {
  const Tensor out = empty_like(a);
  const void* parts[] = {a.raw_data(), b.raw_data()};
  const TreeNode nodes[] = {{0, 0}, {0, 1}};
  tree_sum(a.dtype(), out.raw_data(), parts, nodes, a.numel());
  return out;
}

// The definition, word for word.
Tensor node_sum(int level, std::int64_t index, std::int64_t count, DType dtype) {
  if (level == 0) return leaf(index, count, dtype);
  return add(node_sum(level - 1, 2 * index, count, dtype), node_sum(level - 1, 2 * index + 1, count, dtype));
}

TEST(ShardTree, WorkersShareTheShardsInOrder) {
  for (const int workers : {1, 2, 3, 5, 7, 8}) {
    std::int64_t next = 0;
    for (int w = 0; w < workers; ++w) {
      const ShardRange range = shards_of_worker(8, workers, w);
      EXPECT_EQ(range.begin, next);
      EXPECT_TRUE(range.size() == 8 / workers || range.size() == 8 / workers + 1);
      next = range.end;
    }
    EXPECT_EQ(next, 8);
  }
}

TEST(ShardTree, UnitsAreTheLargestNodesInside) {
  const std::vector<TreeNode> root = {{3, 0}};
  EXPECT_EQ(tree_units({0, 8}), root);
  const std::vector<TreeNode> second_half = {{2, 1}};
  EXPECT_EQ(tree_units({4, 8}), second_half);
  const std::vector<TreeNode> middle = {{0, 3}, {1, 2}};
  EXPECT_EQ(tree_units({3, 6}), middle);
  const std::vector<TreeNode> long_one = {{0, 1}, {1, 1}, {2, 1}, {1, 4}, {0, 10}};
  EXPECT_EQ(tree_units({1, 11}), long_one);
}

TEST(ShardTree, AStackLeavesTheUnits) {
  for (std::int64_t begin = 0; begin < 16; ++begin)
    for (std::int64_t end = begin + 1; end <= 16; ++end) {
      TreeStack<std::string> stack;
      for (std::int64_t i = begin; i < end; ++i)
        stack.push({0, i}, std::to_string(i),
                   [](std::string& left, const std::string& right) { left = "(" + left + "+" + right + ")"; });
      std::vector<TreeNode> nodes;
      for (const auto& entry : stack.entries()) nodes.push_back(entry.node);
      EXPECT_EQ(nodes, tree_units({begin, end}));
      if (begin == 4 && end == 8) {
        EXPECT_EQ(stack.entries()[0].value, "((4+5)+(6+7))");
      }
    }
}

TEST(ShardTree, NumbersThatDoNotFitAreErrors) {
  EXPECT_EQ(error_of([] { check_shards(6, 1, "x"); }),
            "[x] the number of logical shards is 6; expected a power of two from 1 to 2^20");
  EXPECT_NE(error_of([] { check_shards(0, 1, "x"); }).find("is 0"), std::string::npos);
  EXPECT_NE(error_of([] { check_shards(4, 5, "x"); }).find("5 workers cannot share 4 logical shards"),
            std::string::npos);
}

TEST(TreeSum, TakesPartsOfAnyLevel) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16}) {
    const std::int64_t count = 2500;
    const Tensor expected = node_sum(3, 0, count, dtype);
    const Tensor parts[] = {node_sum(1, 0, count, dtype), leaf(2, count, dtype), leaf(3, count, dtype),
                            node_sum(2, 1, count, dtype)};
    std::vector<const void*> pointers;
    for (const Tensor& part : parts) pointers.push_back(part.raw_data());
    const TreeNode nodes[] = {{1, 0}, {0, 2}, {0, 3}, {2, 1}};
    const Tensor out = empty_like(expected);
    tree_sum(dtype, out.raw_data(), pointers, nodes, count);
    EXPECT_EQ(bits_of(out), bits_of(expected)) << name(dtype);
    tree_sum(dtype, parts[0].raw_data(), pointers, nodes, count);  // in place
    EXPECT_EQ(bits_of(parts[0]), bits_of(expected)) << name(dtype);
  }
}

TEST(TreeSum, NodesWithAGapAreAnError) {
  const float value = 1.0f;
  float out = 0.0f;
  const void* parts[] = {&value, &value};
  const TreeNode nodes[] = {{0, 1}, {0, 2}};
  EXPECT_EQ(error_of([&] { tree_sum(kFloat32, &out, parts, nodes, 1); }),
            "[tree_sum] 2 parts leave 2 nodes of the shard tree; expected one");
}

// Every rank adds up its own leaves, the group does the rest.
std::vector<char> reduced_bits(Link link, int world, std::int64_t shards, std::int64_t count, DType dtype,
                               double divisor) {
  std::vector<std::vector<char>> results(static_cast<std::size_t>(world));
  run_ranks(world, link, [&](ProcessGroup& group) {
    TreeStack<Tensor> stack;
    const ShardRange mine = shards_of_worker(shards, world, group.rank());
    for (std::int64_t i = mine.begin; i < mine.end; ++i)
      stack.push({0, i}, leaf(i, count, dtype), [](Tensor& left, const Tensor& right) { left = add(left, right); });
    const Tensor units = empty({static_cast<std::int64_t>(stack.entries().size()), count}, {.dtype = dtype});
    for (std::size_t u = 0; u < stack.entries().size(); ++u)
      copy_values(stack.entries()[u].value, units.as_strided({count}, {1}, static_cast<std::int64_t>(u) * count));
    const bool in_place = stack.entries().size() == 1;
    const Tensor out = in_place ? units.as_strided({count}, {1}, 0) : empty({count}, {.dtype = dtype});
    const Tensor by = zeros({1}, {.dtype = kFloat64});
    // The divisor is known only when the operation before has ended.
    const Tensor by_units = full({static_cast<std::int64_t>(stack.entries().size()), 1}, 0.0, {.dtype = kFloat64});
    if (group.rank() == 0) by_units.data<double>()[0] = divisor;
    const WorkPtr first = group.all_reduce_tree(by, by_units, shards);
    group.all_reduce_tree(out, units, shards, by)->wait();
    first->wait();
    results[static_cast<std::size_t>(group.rank())] = bits_of(out);
  });
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

TEST(AllReduceTree, HasTheSameBitsOnEveryNumberOfRanks) {
  for (const std::int64_t count : {1, 3000, 70'001}) {
    const Tensor sum = node_sum(3, 0, count, kFloat32);
    const Tensor expected = empty_like(sum);
    const void* part = sum.raw_data();
    const TreeNode root{3, 0};
    tree_sum(kFloat32, expected.raw_data(), {&part, 1}, {&root, 1}, count, 3.0);
    for (const int world : {1, 2, 3, 4, 5, 6, 7, 8})
      EXPECT_EQ(reduced_bits(Link::in_process, world, 8, count, kFloat32, 3.0), bits_of(expected))
          << count << " elements, " << world << " ranks";
  }
}

TEST(AllReduceTree, WorksOnEveryBackendAndDtype) {
  for (const DType dtype : {kFloat64, kFloat16, kBFloat16})
    for (const int world : {3, 4})
      EXPECT_EQ(reduced_bits(Link::gloo, world, 16, 40'000, dtype, 1.0), bits_of(node_sum(4, 0, 40'000, dtype)))
          << name(dtype) << ", " << world << " ranks";
  // Several pieces of a MiB.
  EXPECT_EQ(reduced_bits(Link::gloo, 2, 4, 700'000, kFloat32, 1.0), bits_of(node_sum(2, 0, 700'000, kFloat32)));
}

TEST(AllReduceTree, IsNotTheSumInRankOrder) {
  const std::int64_t count = 3000;
  Tensor sum = leaf(0, count, kFloat32);
  for (int i = 1; i < 4; ++i) sum = add(sum, leaf(i, count, kFloat32));
  EXPECT_NE(reduced_bits(Link::in_process, 4, 4, count, kFloat32, 1.0), bits_of(sum));
}

TEST(AllReduceTree, RefusesWhatDoesNotFit) {
  run_ranks(2, Link::in_process, [](ProcessGroup& group) {
    const Tensor out = zeros({4});
    EXPECT_NE(error_of([&] { group.all_reduce_tree(out, zeros({8}), 4); }).find("units [8] has 8 elements; expected 4"),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.all_reduce_tree(out, zeros({4}, {.dtype = kFloat64}), 4); }).find("one dtype"),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.all_reduce_tree(out, out, 4, zeros({1})); }).find("must be one float64 element"),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.all_reduce_tree(out, out, 1); }).find("2 workers cannot share 1"),
              std::string::npos);
    const Tensor whole = zeros({4}, {.dtype = kInt64});
    EXPECT_NE(error_of([&] { group.all_reduce_tree(whole, whole, 4); }).find("floating-point"), std::string::npos);
    group.barrier()->wait();
  });
}

}  // namespace
}  // namespace lockstep::distributed
