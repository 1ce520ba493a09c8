// The group itself: many operations at once, several threads, wrong arguments, a world of one.

#include "lockstep/distributed/process_group/process_group.h"

#include <chrono>
#include <numeric>
#include <thread>

#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

class ProcessGroupOver : public ProcessGroupTest {};

INSTANTIATE_TEST_SUITE_P(All, ProcessGroupOver, all_cases(), case_name);

TEST_P(ProcessGroupOver, ManyOperationsUnderWay) {
  run([](ProcessGroup& group) {
    constexpr int kOperations = 50;
    std::vector<Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int n = 0; n < kOperations; ++n) {
      tensors.push_back(input_of(group, n * 37 + 1));
      works.push_back(group.all_reduce(tensors.back()));
    }
    for (int n = kOperations - 1; n >= 0; --n) {
      works[static_cast<std::size_t>(n)]->wait();
      expect_values(
          tensors[static_cast<std::size_t>(n)],
          [&](auto i) { return rank_sum(group) * static_cast<double>(i % 5 + 1); }, "queued");
    }
    const auto records = group.records();
    ASSERT_EQ(records.size(), static_cast<std::size_t>(kOperations));
    for (std::size_t n = 0; n < records.size(); ++n) {
      EXPECT_EQ(records[n].operation.number, n);
      EXPECT_EQ(records[n].state, OperationRecord::State::finished);
      EXPECT_LE(records[n].queued_ns, records[n].started_ns);
      EXPECT_LE(records[n].started_ns, records[n].finished_ns);
      const std::int64_t before = n == 0 ? 0 : records[n - 1].finished_ns;
      EXPECT_LE(before, records[n].started_ns) << "collectives run in order of issue";
    }
  });
}

TEST_P(ProcessGroupOver, ArgumentsAreCheckedBeforeAnythingIsSent) {
  run([](ProcessGroup& group) {
    const int world = group.world_size();
    const Tensor ten = zeros({10}), matrix = zeros({4, 6});
    const auto expect_error = [&](const char* part, const auto& body) {
      const std::string error = error_of(body);
      EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    expect_error("[all_reduce] tensor is undefined", [&] { group.all_reduce(Tensor()); });
    expect_error("is not contiguous", [&] { group.all_reduce(matrix.as_strided({6, 4}, {1, 6}, 0)); });
    expect_error("[broadcast] root is ", [&] { group.broadcast(ten, world); });
    expect_error("expected 0 to ", [&] { group.reduce(ten, -1); });
    expect_error("avg is defined for floating-point",
                 [&] { group.all_reduce(zeros({3}, {.dtype = kInt64}), ReduceOp::avg); });
    expect_error("[all_gather] output [10] has 10 elements", [&] { group.all_gather(ten, ten); });
    expect_error("expected one dtype", [&] { group.all_gather(zeros({10 * world}, {.dtype = kFloat64}), ten); });
    expect_error("equally many elements", [&] { group.all_to_all(ten, matrix); });
    expect_error("this rank itself", [&] { group.send(ten, group.rank()); });
    expect_error("source is", [&] { group.recv(ten, world); });
    if (group.rank() == 0) expect_error("[gather] output is undefined", [&] { group.gather(Tensor(), ten, 0); });
    // No call above counts: the group still works.
    const Tensor one = ones({1});
    group.all_reduce(one)->wait();
    EXPECT_EQ(one.item(), world);
    EXPECT_EQ(group.records().size(), 1u);
  });
}

TEST_P(ProcessGroupOver, SeveralThreadsMayIssue) {
  run([](ProcessGroup& group) {
    // Point-to-point operations from a second thread beside collectives from the first.
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    std::thread other([&] {
      for (int round = 0; round < 20; ++round) {
        const Tensor mine = filled(100, kFloat32, [&](auto) { return group.rank() * 100 + round; });
        const Tensor theirs = zeros({100});
        const WorkPtr send = group.send(mine, next), recv = group.recv(theirs, previous);
        send->wait();
        recv->wait();
        expect_values(
            theirs, [&](auto) { return previous * 100 + round; }, "beside");
      }
    });
    for (int round = 0; round < 20; ++round) {
      const Tensor tensor = input_of(group, 100);
      group.all_reduce(tensor)->wait();
      expect_values(
          tensor, [&](auto i) { return rank_sum(group) * static_cast<double>(i % 5 + 1); }, "beside");
    }
    other.join();
  });
}

TEST(ProcessGroup, AWorldOfOne) {
  const ProcessGroupPtr group = make_single_process_group();
  EXPECT_EQ(group->world_size(), 1);
  EXPECT_EQ(group->backend(), "self");
  const Tensor tensor = filled(5, kFloat32, [](auto i) { return double(i); });
  group->all_reduce(tensor, ReduceOp::avg)->wait();
  group->broadcast(tensor)->wait();
  group->barrier()->wait();
  const Tensor output = zeros({1, 5}), scattered = zeros({5}), all = zeros({5});
  group->all_gather(output, tensor)->wait();
  group->reduce_scatter(scattered, tensor)->wait();
  group->all_to_all(all, tensor)->wait();
  for (const Tensor& result : {tensor, output, scattered, all})
    expect_values(
        result, [](auto i) { return double(i); }, "");
  EXPECT_NE(error_of([&] { group->send(tensor, 0); }).find("this rank itself"), std::string::npos);
}

TEST(ProcessGroup, AWorldOfOneIsDeadOnceItIsAborted) {
  const ProcessGroupPtr group = make_single_process_group();
  const ProcessGroupPtr part = group->split(0);
  group->barrier()->wait();
  group->abort("enough");
  EXPECT_TRUE(group->failed() && part->failed());
  for (const ProcessGroupPtr& each : {group, part})
    EXPECT_NE(error_of([&] { each->barrier()->wait(); }).find("enough"), std::string::npos);
}

// Each operation has its own deadline, and those behind it wait for it.
TEST(ProcessGroup, AQueueOfSlowOperationsIsWaitedFor) {
  testing::run_ranks(
      2, Link::in_process,
      [](ProcessGroup& group) {
        WorkPtr last;
        for (int i = 0; i < 7; ++i) {
          if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
          last = group.all_reduce(ones({2}));
        }
        last->wait();
      },
      Milliseconds(800));
}

TEST(ProcessGroup, AllToAllNeedsMemoryOfItsOwn) {
  const ProcessGroupPtr group = make_single_process_group();
  const Tensor all = arange(4);
  EXPECT_NE(error_of([&] { group->all_to_all(all, all); }).find("output shares memory with input"), std::string::npos);
  EXPECT_NE(error_of([&] { group->all_to_all_uneven(all, all, {4}, {4}); }).find("output shares memory"),
            std::string::npos);
  group->all_to_all(rows(all, 0, 2), rows(all, 2, 2))->wait();
  EXPECT_EQ(all.to_vector<std::int64_t>(), (std::vector<std::int64_t>{2, 3, 2, 3}));
}

}  // namespace
}  // namespace lockstep::distributed
