// Collectives with each rank's block in a tensor of its own.

#include <string>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using Blocks = std::vector<Tensor>;

class Lists : public ProcessGroupTest {};

INSTANTIATE_TEST_SUITE_P(All, Lists, all_cases(), case_name);

/// One for each rank, with size_of(rank) elements of value_of(rank).
template <typename Size, typename Value>
Blocks blocks_of(const ProcessGroup& group, Size&& size_of, Value&& value_of, DType dtype = kFloat32) {
  Blocks blocks;
  for (int r = 0; r < group.world_size(); ++r)
    blocks.push_back(full({size_of(r)}, static_cast<double>(value_of(r)), {.dtype = dtype}));
  return blocks;
}

void expect_all(const Tensor& tensor, double value, const char* what) {
  expect_values(
      tensor, [&](auto) { return value; }, what);
}

std::vector<std::int64_t> lengths(const ProcessGroup& group) {
  return {0, 7, group.world_size() > 2 ? 1001 : 300'001};
}

TEST_P(Lists, AllGather) {
  run([](ProcessGroup& group) {
    for (const std::int64_t length : lengths(group)) {
      const auto size = [&](int r) { return r == 1 ? 0 : length + 3 * r; };
      const Blocks outputs = blocks_of(
          group, size, [](int) { return -1; }, kInt64);
      group.all_gather(outputs, full({size(group.rank())}, group.rank(), {.dtype = kInt64}))->wait();
      for (int r = 0; r < group.world_size(); ++r) expect_all(outputs[static_cast<std::size_t>(r)], r, "all_gather");
      // In place.
      const Blocks values = blocks_of(group, size, [&](int r) { return r == group.rank() ? r : -1; });
      group.all_gather(values, values[static_cast<std::size_t>(group.rank())])->wait();
      for (int r = 0; r < group.world_size(); ++r) expect_all(values[static_cast<std::size_t>(r)], r, "in place");
    }
  });
}

TEST_P(Lists, GatherAndScatter) {
  run([](ProcessGroup& group) {
    const int root = group.world_size() - 1;
    for (const std::int64_t length : lengths(group)) {
      const auto size = [&](int) { return length; };
      const Tensor input = full({length}, group.rank() + 1);
      if (group.rank() == root) {
        const Blocks outputs = blocks_of(group, size, [](int) { return -1; });
        group.gather(outputs, input, root)->wait();
        for (int r = 0; r < group.world_size(); ++r) expect_all(outputs[static_cast<std::size_t>(r)], r + 1, "gather");
        const Tensor output = zeros({length});
        group.scatter(output, outputs, root)->wait();
        expect_all(output, root + 1, "scatter");
      } else {
        group.gather({}, input, root)->wait();
        const Tensor output = zeros({length});
        group.scatter(output, {}, root)->wait();
        expect_all(output, group.rank() + 1, "scatter");
      }
    }
  });
}

TEST_P(Lists, ReduceScatter) {
  run([](ProcessGroup& group) {
    for (const std::int64_t length : lengths(group)) {
      const auto size = [&](int r) { return r == 0 ? 0 : length + r; };
      const Blocks inputs = blocks_of(group, size, [&](int r) { return (group.rank() + 1) * (r + 1); });
      const Tensor output = zeros({size(group.rank())});
      group.reduce_scatter(output, inputs)->wait();
      expect_all(output, rank_sum(group) * (group.rank() + 1), "reduce_scatter");
      group.reduce_scatter(inputs[static_cast<std::size_t>(group.rank())], inputs, ReduceOp::max)->wait();
      expect_all(inputs[static_cast<std::size_t>(group.rank())], group.world_size() * (group.rank() + 1), "in place");
    }
  });
}

TEST_P(Lists, AllToAll) {
  run([](ProcessGroup& group) {
    for (const std::int64_t length : lengths(group)) {
      const auto size = [&](int from, int to) {
        return (from + 1) % group.world_size() == to ? 0 : length + from + to;
      };
      const Blocks inputs = blocks_of(
          group, [&](int r) { return size(group.rank(), r); }, [&](int r) { return 100 * group.rank() + r; }, kInt32);
      const Blocks outputs = blocks_of(
          group, [&](int r) { return size(r, group.rank()); }, [](int) { return -1; }, kInt32);
      group.all_to_all(outputs, inputs)->wait();
      for (int r = 0; r < group.world_size(); ++r)
        expect_all(outputs[static_cast<std::size_t>(r)], 100 * r + group.rank(), "all_to_all");
    }
  });
}

class ListsFailure : public ::testing::TestWithParam<Link> {
 protected:
  void SetUp() override {
    if (GetParam() == Link::gloo && !gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

INSTANTIATE_TEST_SUITE_P(All, ListsFailure, ::testing::Values(Link::in_process, Link::gloo, Link::shm),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(ListsFailure, OfSizesThatDoNotFitNamesThem) {
  const std::vector<std::string> errors = errors_of_ranks(2, GetParam(), Milliseconds(20'000), [](ProcessGroup& group) {
    group.all_gather({zeros({2}), zeros({group.rank() == 0 ? 3 : 4})}, zeros({group.rank() == 0 ? 2 : 4}))->wait();
    group.barrier()->wait();
  });
  EXPECT_NE(errors[0].find("mismatched counts: rank 1 has 4 element(s) for rank 0, which expects 3"), std::string::npos)
      << errors[0];
  const std::vector<std::string> reduced = errors_of_ranks(2, GetParam(), Milliseconds(1000), [](ProcessGroup& group) {
    // Rank 0's own block has the size that rank 1 thinks; the other's has not.
    group
        .reduce_scatter(zeros({group.rank() + 1}), std::vector<Tensor>{zeros({1}), zeros({group.rank() == 0 ? 3 : 2})})
        ->wait();
    group.barrier()->wait();
  });
  for (const std::string& error : reduced) EXPECT_NE(error.find("reduce_scatter"), std::string::npos) << error;
}

TEST(ListsErrors, NameTheProblem) {
  run_ranks(2, Link::in_process, [](ProcessGroup& group) {
    const Tensor x = zeros({2}), y = zeros({2}), z = zeros({3}), mine = zeros({2});
    const auto expect = [](const std::string& error, const char* text) {
      EXPECT_NE(error.find(text), std::string::npos) << error;
    };
    expect(error_of([&] { group.all_gather({x, y, z}, mine); }), "outputs has 3 tensor(s); expected one for each of 2");
    expect(error_of([&] { group.all_gather({x, x}, mine); }), "shares memory with another one of the operation");
    expect(error_of([&] { group.all_gather({x, y}, z); }), "input [3] has 3 elements; expected 2, those of outputs[");
    expect(error_of([&] { group.all_gather({x, Tensor()}, mine); }), "outputs is undefined");
    expect(error_of([&] { group.all_gather({x, zeros({2}, {.dtype = kInt64})}, mine); }), "expected one dtype");
    expect(error_of([&] { group.gather({x, z}, mine, group.rank()); }), "outputs[1] [3] has 3 elements; expected 2");
    expect(error_of([&] { group.scatter(mine, {}, group.rank()); }), "inputs has 0 tensor(s)");
    expect(error_of([&] { group.scatter(mine, {x, z}, group.rank()); }), "inputs[1] [3] has 3 elements; expected 2");
    expect(error_of([&] { group.reduce_scatter(z, Blocks{x, y}); }), "output [3] has 3 elements; expected 2");
    expect(error_of([&] { group.reduce_scatter(mine, Blocks{x, y}, ReduceOp::bor); }), "bor is defined for integers");
    expect(error_of([&] { group.all_to_all(Blocks{x, y}, Blocks{y, z}); }), "expected ");
    expect(error_of([&] { group.all_to_all(Blocks{x, y}, Blocks{x, x}); }), "shares memory");
    group.scatter(mine, Blocks{x, x}, 0)->wait();  // what is read alone may be one tensor
  });
  const ProcessGroupPtr alone = make_single_process_group();
  const Tensor output = zeros({2});
  alone->all_gather({output}, ones({2}))->wait();
  expect_all(output, 1, "all_gather");
  alone->all_to_all(Blocks{output}, Blocks{full({2}, 2)})->wait();
  expect_all(output, 2, "all_to_all");
  alone->reduce_scatter(output, Blocks{full({2}, 3)})->wait();
  expect_all(output, 3, "reduce_scatter");
}

}  // namespace
}  // namespace lockstep::distributed
