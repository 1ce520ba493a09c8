// Collectives that move what ranks have without adding it up, and the barrier.

#include <atomic>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

class DataMovement : public ProcessGroupTest {};

INSTANTIATE_TEST_SUITE_P(All, DataMovement, all_cases(), case_name);

TEST_P(DataMovement, Broadcast) {
  run([](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root)
      for (const std::int64_t size : sizes_for(group)) {
        const Tensor tensor = input_of(group, size);
        group.broadcast(tensor, root)->wait();
        expect_values(
            tensor, [&](auto i) { return element(root, i); }, "broadcast");
      }
  });
}

TEST_P(DataMovement, GatherAndAllGather) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group)) {
      const auto expected = [&](std::int64_t i) { return element(static_cast<int>(i / size), i % size); };
      const Tensor input = input_of(group, size, kInt64);
      const Tensor all = zeros({group.world_size(), size}, {.dtype = kInt64});
      group.all_gather(all, input)->wait();
      expect_values(all, expected, "all_gather");
      const int root = group.world_size() - 1;
      const Tensor at_root = group.rank() == root ? zeros({group.world_size() * size}, {.dtype = kInt64}) : Tensor();
      group.gather(at_root, input, root)->wait();
      if (group.rank() == root) expect_values(at_root, expected, "gather");
    }
  });
}

TEST_P(DataMovement, Scatter) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group)) {
      const int root = 1;
      Tensor input;
      if (group.rank() == root) input = filled(group.world_size() * size, kFloat64, [](auto i) { return double(i); });
      const Tensor output = zeros({size}, {.dtype = kFloat64});
      group.scatter(output, input, root)->wait();
      expect_values(
          output, [&](auto i) { return static_cast<double>(group.rank() * size + i); }, "scatter");
    }
  });
}

TEST_P(DataMovement, AllToAll) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group)) {
      // Block `to` of rank `from` holds 1000 * from + to.
      const Tensor input = filled(size * group.world_size(), kInt32,
                                  [&](auto i) { return static_cast<double>(1000 * group.rank() + i / size); });
      const Tensor output = zeros({size * group.world_size()}, {.dtype = kInt32});
      group.all_to_all(output, input)->wait();
      expect_values(
          output, [&](auto i) { return static_cast<double>(1000 * (i / size) + group.rank()); }, "all_to_all");
    }
  });
}

TEST_P(DataMovement, BarrierWaitsForEveryRank) {
  std::atomic<int> arrived = 0;
  run([&](ProcessGroup& group) {
    for (int round = 1; round <= 5; ++round) {
      ++arrived;
      group.barrier()->wait();
      EXPECT_GE(arrived, round * group.world_size());
    }
  });
}

TEST_P(DataMovement, EmptyTensors) {
  run([](ProcessGroup& group) {
    const Tensor none = zeros({0}), none_of_all = zeros({group.world_size(), 0});
    group.all_reduce(none)->wait();
    group.broadcast(none, 1)->wait();
    group.reduce(none, 0)->wait();
    group.all_gather(none_of_all, none)->wait();
    group.reduce_scatter(none, none_of_all)->wait();
    group.all_to_all(none_of_all, none_of_all)->wait();
    const Tensor one = ones({1});
    group.all_reduce(one)->wait();
    EXPECT_EQ(one.item(), group.world_size());
  });
}

std::ptrdiff_t threads_of_process() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

// Each message that is under way has a thread, which is not kept.
TEST_P(DataMovement, ManyMessagesLeaveNoThreadsBehind) {
  std::atomic<std::ptrdiff_t> most = 0, before = 0, after = 0;
  run([&](ProcessGroup& group) {
    group.barrier()->wait();  // all groups have their threads
    if (group.rank() == 0) before = threads_of_process();
    group.barrier()->wait();
    const int other = group.rank() ^ 1;
    if (other < group.world_size()) {
      std::vector<Tensor> values;
      std::vector<WorkPtr> works;
      for (int i = 0; i < 40; ++i) {
        values.push_back(full({3}, i));
        values.push_back(zeros({3}));
        works.push_back(group.recv(values.back(), other));
      }
      if (group.rank() == 0) most = threads_of_process();
      for (int i = 0; i < 40; ++i) works.push_back(group.send(values[static_cast<std::size_t>(2 * i)], other));
      for (const WorkPtr& work : works) work->wait();
      for (int i = 0; i < 40; ++i) EXPECT_EQ(values[static_cast<std::size_t>(2 * i + 1)].to_vector<float>()[0], i);
    }
    for (int i = 0; i < 100 && (i == 0 || after > before + 2); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));  // as long as they stay idle
      if (group.rank() == 0) after = threads_of_process();
    }
    group.barrier()->wait();
  });
  if (most > 0) {
    EXPECT_GT(most, before + 20);
  }
  EXPECT_LE(after, before + 2);
}

}  // namespace
}  // namespace lockstep::distributed
