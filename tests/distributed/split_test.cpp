// Groups of some of a group's ranks: who is in them, that they do not wait for each other, and that they fail together.

#include <chrono>
#include <thread>

#include "lockstep/distributed/process_group/process_group.h"
#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

class Split : public ProcessGroupTest {};

INSTANTIATE_TEST_SUITE_P(All, Split,
                         ::testing::Values(Case{1, Link::in_process}, Case{3, Link::in_process},
                                           Case{8, Link::in_process}, Case{4, Link::gloo}, Case{4, Link::shm}),
                         case_name);

double sum_of(ProcessGroup& group, double value) {
  const Tensor total = full({3}, value);
  group.all_reduce(total)->wait();
  return total.to_vector<double>().back();
}

TEST_P(Split, RanksOfOneColorAreAGroupInTheOrderOfTheirKeys) {
  run([](ProcessGroup& job) {
    const int rank = job.rank(), world = job.world_size();
    // Odd and even ones, the highest rank first.
    const ProcessGroupPtr half = job.split(rank % 2, -rank);
    const int size = (world + (rank % 2 == 0 ? 1 : 0)) / 2;
    ASSERT_TRUE(half);
    EXPECT_EQ(half->world_size(), size);
    for (int r = 0; r < size; ++r) EXPECT_EQ(half->job_rank(r), 2 * (size - 1 - r) + rank % 2);
    EXPECT_EQ(half->job_rank(half->rank()), rank);
    double expected = 0;
    for (int r = rank % 2; r < world; r += 2) expected += r;
    EXPECT_EQ(sum_of(*half, rank), expected);

    // Without the last one, and in the order of ranks where keys are equal.
    const ProcessGroupPtr most = job.split(rank == world - 1 ? -1 : 5);
    EXPECT_EQ(most == nullptr, rank == world - 1);
    if (most) {
      EXPECT_EQ(most->rank(), rank);
      EXPECT_EQ(sum_of(*most, 1.0), world - 1.0);
      const ProcessGroupPtr pair = most->split(rank / 2);  // of a part
      EXPECT_EQ(pair->job_rank(pair->rank()), rank);
      EXPECT_EQ(sum_of(*pair, 1.0), pair->world_size());
    }
    // Of a list: its first rank is 0.
    const ProcessGroupPtr ends = job.new_group(world == 1 ? std::vector{0} : std::vector{world - 1, 0});
    EXPECT_EQ(ends != nullptr, rank == 0 || rank == world - 1);
    if (ends) {
      EXPECT_EQ(ends->job_rank(0), world - 1);
      EXPECT_EQ(sum_of(*ends, rank), world - 1.0);
    }
    EXPECT_NE(error_of([&] { job.new_group({0, 0}); }).find("rank 0 is named twice"), std::string::npos);
    EXPECT_NE(error_of([&] { job.new_group({world}); }).find("expected 0 to"), std::string::npos);
    if (world == 1) return;
    const std::string error = error_of([&] { job.new_group({job.rank() % 2}); });
    EXPECT_NE(error.find("were given other ranks than rank 0: 1 on rank 1, and 0 on rank 0"), std::string::npos);
    EXPECT_EQ(sum_of(job, 1.0), world);
  });
}

TEST_P(Split, EveryOperationWorks) {
  run([](ProcessGroup& job) {
    const ProcessGroupPtr half = job.split(job.rank() % 2);
    ProcessGroup& group = *half;
    const int rank = group.rank(), world = group.world_size();
    for (const std::int64_t size : {5, 200'003}) {
      Tensor tensor = full({size}, rank);
      group.broadcast(tensor, world - 1)->wait();
      expect_values(
          tensor, [&](auto) { return world - 1.0; }, "broadcast");
      const Tensor all = zeros({world, size});
      group.all_gather(all, full({size}, rank))->wait();
      EXPECT_EQ(all.to_vector<double>().back(), world - 1.0);
      const Tensor block = zeros({size});
      group.reduce_scatter(block, full({world * size}, rank + 1.0))->wait();
      expect_values(
          block, [&](auto) { return rank_sum(group); }, "reduce_scatter");
      const Tensor tree = zeros({size});
      group.all_reduce_tree(tree, full({size}, 1.0), world == 3 ? 4 : world)->wait();
      EXPECT_EQ(tree.to_vector<double>().front(), world == 3 ? 3.0 : world);
      group.barrier()->wait();
      if (world == 1) continue;
      const int next = (rank + 1) % world, previous = (rank + world - 1) % world;
      const Tensor theirs = zeros({size});
      const WorkPtr recv = group.recv(theirs, previous), send = group.send(full({size}, rank), next);
      recv->wait();
      send->wait();
      expect_values(
          theirs, [&](auto) { return previous; }, "recv");
    }
  });
}

// Ranks issue the operations of a group and of its parts in different orders; large ones, so that transports fill up.
TEST_P(Split, GroupsDoNotWaitForEachOther) {
  run([](ProcessGroup& job) {
    constexpr std::int64_t kSize = 300'000;
    const ProcessGroupPtr first = job.split(0), second = job.split(0, -job.rank());
    std::vector<ProcessGroup*> groups{&job, first.get(), second.get()};
    if (job.rank() % 2 == 1) std::reverse(groups.begin(), groups.end());
    for (int round = 0; round < 3; ++round) {
      std::vector<Tensor> values;
      std::vector<WorkPtr> works;
      for (ProcessGroup* group : groups) {
        values.push_back(ones({kSize}));
        works.push_back(group->all_reduce(values.back()));
        if (job.rank() == 0) works.back()->wait();  // before it issues the next
      }
      for (const WorkPtr& work : works) work->wait();
      for (const Tensor& value : values) EXPECT_EQ(value.to_vector<double>().back(), job.world_size());
    }
  });
}

// Each of four groups by a thread of its own, so that ranks issue the operations of all in no common order.
TEST_P(Split, GroupsAreUsedByThreadsOfTheirOwn) {
  run([](ProcessGroup& job) {
    const ProcessGroupPtr half = job.split(job.rank() % 2), turned = job.split(0, -job.rank()), part = half->split(0);
    const auto use = [](ProcessGroup& group, std::int64_t size) {
      const int world = group.world_size(), next = (group.rank() + 1) % world;
      const int previous = (group.rank() + world - 1) % world;
      for (int round = 1; round <= 12; ++round) {
        const Tensor total = full({size}, round), theirs = zeros({size + round});
        const WorkPtr sum = group.all_reduce(total);
        if (world > 1) {
          const WorkPtr recv = group.recv(theirs, previous);
          group.send(full({size + round}, group.rank()), next)->wait();
          recv->wait();
          ASSERT_EQ(theirs.to_vector<double>().back(), previous);
        }
        sum->wait();
        ASSERT_EQ(total.to_vector<double>().back(), round * world);
      }
    };
    std::vector<std::thread> threads;
    std::int64_t size = 10;
    for (ProcessGroup* group : {&job, half.get(), turned.get(), part.get()}) {
      threads.emplace_back([&use, group, size] { EXPECT_NO_THROW(use(*group, size)); });
      size *= 12;
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_P(Split, AGroupOutlivesTheHandleOfTheOneItCameFrom) {
  run([](ProcessGroup& job) {
    ProcessGroupPtr middle = job.split(0);
    ProcessGroupPtr last = middle->split(0);
    if (job.rank() % 2 == 0) middle.reset();
    EXPECT_EQ(sum_of(*last, 1.0), job.world_size());
    middle.reset();
    EXPECT_EQ(sum_of(*last, 2.0), 2.0 * job.world_size());
    last.reset();
    EXPECT_EQ(sum_of(job, 1.0), job.world_size());
  });
}

/// Four ranks in two groups, of 0 and 1, and of 2 and 3.
std::vector<std::string> errors_in_pairs(Link link, Milliseconds timeout,
                                         const std::function<void(ProcessGroup& job, ProcessGroup& pair)>& body) {
  return errors_of_ranks(4, link, timeout, [&](ProcessGroup& job) {
    const ProcessGroupPtr pair = job.split(job.rank() / 2);
    body(job, *pair);
  });
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

class SplitFailure : public ::testing::TestWithParam<Link> {
 protected:
  void SetUp() override {
    if (GetParam() == Link::gloo && !gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

INSTANTIATE_TEST_SUITE_P(All, SplitFailure, ::testing::Values(Link::in_process, Link::gloo, Link::shm),
                         [](const auto& info) { return name_of(info.param); });

// One that gives up ends the group it is in, the other one, and the job's, long before the deadline.
TEST_P(SplitFailure, OfARankEndsAllGroups) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_in_pairs(GetParam(), Milliseconds(20'000), [](ProcessGroup& job, ProcessGroup& pair) {
    job.barrier()->wait();
    if (job.rank() == 3) {
      std::this_thread::sleep_for(Milliseconds(150));  // the others are in their operations
      pair.abort("out of milk");
      throw Error("out of milk");
    }
    if (job.rank() == 0) return pair.recv(zeros({1}), 1)->wait();  // which never comes
    if (job.rank() == 1) return job.barrier()->wait();
    pair.all_reduce(ones({4}))->wait();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (const int rank : {0, 1, 2})
    expect_in(errors[static_cast<std::size_t>(rank)], "rank 3 aborted on this rank: out of milk");
  expect_in(errors[0], "[Rank 0] recv #0 (float32 [1], from rank 1) in the group of ranks 0, 1 failed: ");
  expect_in(errors[2], "[Rank 2] all_reduce #0 (float32 [4], sum) in the group of ranks 2, 3 failed: rank 3 aborted");
}

// Ranks 0 and 1 in a group of the group of 0, 1 and 2. Each rank waits in the operation of another group.
TEST_P(SplitFailure, OfAPartOfAPartEndsAllGroups) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_of_ranks(4, GetParam(), Milliseconds(20'000), [](ProcessGroup& job) {
    const ProcessGroupPtr three = job.split(job.rank() == 3 ? -1 : 0);
    const ProcessGroupPtr two = three ? three->split(job.rank() / 2) : nullptr;
    job.barrier()->wait();
    if (job.rank() == 0) two->all_reduce(ones({4}))->wait();
    if (job.rank() == 1) {
      std::this_thread::sleep_for(Milliseconds(150));  // the others are in their operations
      two->abort("out of tea");
      throw Error("out of tea");
    }
    if (job.rank() == 2) three->barrier()->wait();
    job.barrier()->wait();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
  for (const int rank : {0, 2, 3})
    expect_in(errors[static_cast<std::size_t>(rank)], "rank 1 aborted on this rank: out of tea");
  expect_in(errors[0], "[Rank 0] all_reduce #0 (float32 [4], sum) in the group of ranks 0, 1 failed: ");
  expect_in(errors[2], "[Rank 2] barrier #1 in the group of ranks 0-2 failed: ");
  for (const std::string& error : errors)
    EXPECT_EQ(error.find("in the group of ranks 0-2: in the group"), std::string::npos) << error;
  expect_in(errors[3], "[Rank 3] barrier #");
}

// Rank 1 is late, and rank 0 waits for it in a group of a group, of which the job's monitor must know.
TEST(SplitDeadline, OfADeadlineIsNotBlamedOnWhoWaitsInAPartOfAPart) {
  const auto errors = errors_of_ranks(4, Link::in_process, Milliseconds(800), [](ProcessGroup& job) {
    const ProcessGroupPtr three = job.split(job.rank() == 3 ? -1 : 0);
    const ProcessGroupPtr two = three ? three->split(job.rank() / 2) : nullptr;
    job.barrier()->wait();
    if (job.rank() == 0) std::this_thread::sleep_for(Milliseconds(400));  // the job's deadline comes first
    if (job.rank() == 0) two->all_reduce(ones({4}))->wait();
    if (job.rank() == 1) std::this_thread::sleep_for(Milliseconds(2'500));
    job.barrier()->wait();
  });
  expect_in(errors[3], "rank 1 is alive, but last seen ");
  expect_in(errors[3], "rank 0 waits in all_reduce #0 (float32 [4], sum) in the group of ranks 0, 1");
}

// One rank goes on without it: the others say in what they wait for it. Afterwards there is nothing to split.
TEST(SplitDeadline, OfTheSplitItselfIsNamed) {
  std::vector<std::string> later(4);
  const auto errors = errors_of_ranks(4, Link::in_process, Milliseconds(500), [&](ProcessGroup& job) {
    if (job.rank() == 3) std::this_thread::sleep_for(Milliseconds(2'000));
    const std::string error = error_of([&] { job.split(0); });
    later[static_cast<std::size_t>(job.rank())] = error_of([&] { job.split(0); });
    throw Error(error);
  });
  for (std::size_t rank = 0; rank < 4; ++rank) {
    expect_in(errors[rank], "failed");
    expect_in(later[rank], "failed");
    if (rank < 3) expect_in(errors[rank], "split of the group");
  }
}

TEST_P(SplitFailure, OfADeadlineNamesTheJobsRanks) {
  const auto errors = errors_in_pairs(GetParam(), Milliseconds(400), [](ProcessGroup& job, ProcessGroup& pair) {
    if (job.rank() == 3) std::this_thread::sleep_for(Milliseconds(1'500));
    if (job.rank() < 2) std::this_thread::sleep_for(Milliseconds(300));  // the other group's deadline comes first
    if (job.rank() >= 2) pair.all_reduce(ones({4}))->wait();
    job.barrier()->wait();
  });
  expect_in(errors[2], "[Rank 2] all_reduce #0 (float32 [4], sum) in the group of ranks 2, 3 failed: ");
  expect_in(errors[2], "rank 3 is alive, but last seen ");
  for (const std::string& error : errors) EXPECT_NE(error, "");
}

// Noticed early by the group's own monitor, which compares what its ranks have called.
// Thrown and caught by all ranks, it is nothing that the job must end for.
TEST_P(SplitFailure, AnExceptionMayLeaveTheScopeOfAGroup) {
  run_ranks(2, GetParam(), [](ProcessGroup& job) {
    for (int i = 0; i < 2; ++i) try {
        const ProcessGroupPtr group = job.split(0);
        group->barrier()->wait();
        throw Error("out of milk");
      } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()), "out of milk");
      }
    job.barrier()->wait();
  });
}

TEST_P(SplitFailure, OfDifferentCallsIsNoticedAndToldEverywhere) {
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_in_pairs(GetParam(), Milliseconds(8'000), [](ProcessGroup& job, ProcessGroup& pair) {
    if (job.rank() == 2) pair.all_reduce(ones({4}))->wait();
    if (job.rank() == 3) pair.broadcast(ones({4}))->wait();
    job.barrier()->wait();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(7'500));
  for (const int rank : {2, 3}) {
    expect_in(errors[static_cast<std::size_t>(rank)], "mismatched collectives: ");
    expect_in(errors[static_cast<std::size_t>(rank)], "rank 3 called broadcast #0");
  }
  for (const int rank : {0, 1})
    expect_in(errors[static_cast<std::size_t>(rank)],
              "in the group of ranks 2, 3: mismatched collectives: rank 3 called broadcast #0");
}

// A group of some ranks that goes in good order ends nothing.
TEST_P(SplitFailure, IsNotThatOfAGroupThatIsDone) {
  for (const std::string& error : errors_in_pairs(GetParam(), Milliseconds(5'000), [](ProcessGroup&job, ProcessGroup&) {
         for (int round = 0; round < 3; ++round) {
           const ProcessGroupPtr other = job.split(job.rank() % 2);
           other->barrier()->wait();
         }
         job.barrier()->wait();
       }))
    EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace lockstep::distributed
