// Collectives of a job and of groups of its ranks, under the names that PyTorch's tests have for them
// (torch/testing/_internal/distributed/distributed_test.py); docs/pytorch.md has the whole list. Values are PyTorch's:
// the source has 2, every other rank 10.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/distributed/pytorch_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

void expect_all_reduce(Who who, ReduceOp op) {
  run_as(who, [&](ProcessGroup& group) {
    for (int source = 0; source < group.world_size(); ++source) {
      const Tensor tensor = full({3, 3, 3}, group.rank() == source ? 2 : 10);
      group.all_reduce(tensor, op)->wait();
      expect_values(
          tensor, [&](auto) { return reduced(op, group.world_size()); }, "all_reduce");
    }
  });
}

void expect_reduce(Who who, ReduceOp op) {
  run_as(who, [&](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root) {
      const Tensor tensor = full({3, 3, 3}, group.rank() == root ? 2 : 10);
      group.reduce(tensor, root, op)->wait();
      expect_values(
          tensor, [&](auto) { return group.rank() == root ? reduced(op, group.world_size()) : 10; }, "reduce");
    }
  });
}

#define LOCKSTEP_REDUCTIONS(op)                       \
  TEST(DistributedTest, all_reduce_##op) {            \
    expect_all_reduce(Who::job, ReduceOp::op);        \
  }                                                   \
  TEST(DistributedTest, all_reduce_full_group_##op) { \
    expect_all_reduce(Who::full_group, ReduceOp::op); \
  }                                                   \
  TEST(DistributedTest, all_reduce_group_##op) {      \
    expect_all_reduce(Who::group, ReduceOp::op);      \
  }                                                   \
  TEST(DistributedTest, reduce_##op) {                \
    expect_reduce(Who::job, ReduceOp::op);            \
  }                                                   \
  TEST(DistributedTest, reduce_full_group_##op) {     \
    expect_reduce(Who::full_group, ReduceOp::op);     \
  }                                                   \
  TEST(DistributedTest, reduce_group_##op) {          \
    expect_reduce(Who::group, ReduceOp::op);          \
  }
LOCKSTEP_REDUCTIONS(sum)
LOCKSTEP_REDUCTIONS(product)
LOCKSTEP_REDUCTIONS(min)
LOCKSTEP_REDUCTIONS(max)
#undef LOCKSTEP_REDUCTIONS

void expect_broadcast(Who who) {
  run_as(who, [](ProcessGroup& group) {
    for (const DType dtype : {kFloat32, kFloat64, kFloat16, kInt64, kUInt8, kBool})
      for (int root = 0; root < group.world_size(); ++root) {
        const Tensor tensor = full({3, 3, 3}, group.rank() == root ? 1 : 0, {.dtype = dtype});
        group.broadcast(tensor, root)->wait();
        expect_values(
            tensor, [](auto) { return 1.0; }, "broadcast");
      }
  });
}
TEST(DistributedTest, broadcast) {
  expect_broadcast(Who::job);
}
TEST(DistributedTest, broadcast_full_group) {
  expect_broadcast(Who::full_group);
}
TEST(DistributedTest, broadcast_group) {
  expect_broadcast(Who::group);
}

void expect_gathers(Who who, bool all) {
  run_as(who, [&](ProcessGroup& group) {
    const Tensor mine = full({2, 2}, group.rank()), everything = zeros({group.world_size(), 2, 2});
    all ? group.all_gather(everything, mine)->wait() : group.gather(everything, mine, 1)->wait();
    if (!all && group.rank() != 1) return;
    expect_values(
        everything, [](auto i) { return std::floor(static_cast<double>(i) / 4.0); }, "gather");
  });
}
TEST(DistributedTest, all_gather) {
  expect_gathers(Who::job, true);
}
TEST(DistributedTest, all_gather_full_group) {
  expect_gathers(Who::full_group, true);
}
TEST(DistributedTest, all_gather_group) {
  expect_gathers(Who::group, true);
}
TEST(DistributedTest, gather) {
  expect_gathers(Who::job, false);
}
TEST(DistributedTest, gather_full_group) {
  expect_gathers(Who::full_group, false);
}
TEST(DistributedTest, gather_group) {
  expect_gathers(Who::group, false);
}

void expect_scatter(Who who) {
  run_as(who, [](ProcessGroup& group) {
    const Tensor mine = zeros({2}), everything = empty({group.world_size(), 2});
    for (int r = 0; r < group.world_size(); ++r) fill_values(everything.as_strided({2}, {1}, 2 * r), r);
    group.scatter(mine, everything, 1)->wait();
    expect_values(
        mine, [&](auto) { return group.rank(); }, "scatter");
  });
}
TEST(DistributedTest, scatter) {
  expect_scatter(Who::job);
}
TEST(DistributedTest, scatter_full_group) {
  expect_scatter(Who::full_group);
}
TEST(DistributedTest, scatter_group) {
  expect_scatter(Who::group);
}

void expect_all_to_all(Who who) {
  run_as(who, [](ProcessGroup& group) {
    const Tensor mine = full({group.world_size(), 2}, group.rank()), theirs = zeros({group.world_size(), 2});
    group.all_to_all(theirs, mine)->wait();
    expect_values(
        theirs, [](auto i) { return std::floor(static_cast<double>(i) / 2.0); }, "all_to_all");
  });
}
TEST(DistributedTest, all_to_all_single_equal_split) {
  expect_all_to_all(Who::job);
}
TEST(DistributedTest, all_to_all_single_equal_split_full_group) {
  expect_all_to_all(Who::full_group);
}
TEST(DistributedTest, all_to_all_single_equal_split_group) {
  expect_all_to_all(Who::group);
}

// Rank r sends i + 1 rows to rank i, and so gets r + 1 from each.
void expect_unequal_split(Who who) {
  run_as(who, [](ProcessGroup& group) {
    const std::int64_t rank = group.rank(), world = group.world_size(), width = 3;
    std::vector<std::int64_t> in, out;
    for (std::int64_t r = 0; r < world; ++r) {
      in.push_back((r + 1) * width);
      out.push_back((rank + 1) * width);
    }
    const Tensor mine = full({world * (world + 1) / 2, width}, static_cast<double>(rank));
    const Tensor theirs = full({world * (rank + 1), width}, -1.0);
    group.all_to_all_uneven(theirs, mine, out, in)->wait();
    expect_values(
        theirs, [&](auto i) { return std::floor(static_cast<double>(i) / static_cast<double>((rank + 1) * width)); },
        "all_to_all_uneven");
  });
}
TEST(DistributedTest, all_to_all_single_unequal_split) {
  expect_unequal_split(Who::job);
}
TEST(DistributedTest, all_to_all_single_unequal_split_full_group) {
  expect_unequal_split(Who::full_group);
}
TEST(DistributedTest, all_to_all_single_unequal_split_group) {
  expect_unequal_split(Who::group);
}

/// Another one for each rank, of different lengths, with every byte in it.
std::string object_of(int rank) {
  std::string bytes(static_cast<std::size_t>(100 * rank), 'o');
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  return bytes + std::to_string(rank);
}

std::vector<std::string> objects_of(const ProcessGroup& group) {
  std::vector<std::string> objects;
  for (int r = 0; r < group.world_size(); ++r) objects.push_back(object_of(r));
  return objects;
}

void expect_objects(Who who, bool all) {
  run_as(who, [&](ProcessGroup& group) {
    const std::string mine = object_of(group.rank());
    const auto found = all ? group.all_gather_object(mine) : group.gather_object(mine, 1);
    EXPECT_EQ(found, all || group.rank() == 1 ? objects_of(group) : std::vector<std::string>());
  });
}
TEST(DistributedTest, all_gather_object_default_pg) {
  expect_objects(Who::job, true);
}
TEST(DistributedTest, all_gather_object_subgroup) {
  expect_objects(Who::group, true);
}
TEST(DistributedTest, gather_object) {
  expect_objects(Who::job, false);
}
TEST(DistributedTest, gather_object_subgroup) {
  expect_objects(Who::group, false);
}
TEST(DistributedTest, broadcast_object_list) {
  run_as(Who::job, [](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root)
      EXPECT_EQ(group.broadcast_object(object_of(group.rank()), root), object_of(root));
  });
}
TEST(DistributedTest, scatter_object_list) {
  run_as(Who::job, [](ProcessGroup& group) {
    const std::vector<std::string> none;
    EXPECT_EQ(group.scatter_object(group.rank() == 2 ? objects_of(group) : none, 2), object_of(group.rank()));
    group.barrier()->wait();
    EXPECT_NE(error_of([&] { group.scatter_object(none, group.rank()); }).find("0 object(s) are given"),
              std::string::npos);
  });
}

void expect_barrier(Who who) {
  std::atomic<int> arrived = 0;
  run_as(who, [&](ProcessGroup& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(Milliseconds(30));
    ++arrived;
    group.barrier()->wait();
    EXPECT_EQ(arrived, group.world_size());
  });
}
TEST(DistributedTest, barrier) {
  expect_barrier(Who::job);
}
TEST(DistributedTest, barrier_full_group) {
  expect_barrier(Who::full_group);
}
TEST(DistributedTest, barrier_group) {
  expect_barrier(Who::group);
}

void expect_barrier_timeout(Who who) {
  const auto errors = errors_of_ranks(3, Link::shm, Milliseconds(300), [&](ProcessGroup& job) {
    const ProcessGroupPtr part = who == Who::job ? nullptr : job.split(who == Who::group && job.rank() == 2 ? -1 : 0);
    if (job.rank() == 0) (part ? *part : job).barrier()->wait();
    if (job.rank() == 1) std::this_thread::sleep_for(Milliseconds(700));
  });
  EXPECT_NE(errors[0].find("barrier #"), std::string::npos) << errors[0];
  EXPECT_NE(errors[0].find("rank 1"), std::string::npos) << errors[0];
}
TEST(DistributedTest, barrier_timeout_global) {
  expect_barrier_timeout(Who::job);
}
TEST(DistributedTest, barrier_timeout_full_group) {
  expect_barrier_timeout(Who::full_group);
}
TEST(DistributedTest, barrier_timeout_group) {
  expect_barrier_timeout(Who::group);
}

TEST(DistributedTest, get_rank) {
  std::vector<std::atomic<int>> seen(kWorld);
  run_as(Who::job, [&](ProcessGroup& group) { ++seen[static_cast<std::size_t>(group.rank())]; });
  for (const auto& times : seen) EXPECT_EQ(times, 1);
}
TEST(DistributedTest, get_rank_size_full_group) {
  run_as(Who::full_group, [](ProcessGroup& group) {
    EXPECT_EQ(group.world_size(), kWorld);
    EXPECT_EQ(group.job_rank(group.rank()), group.rank());
  });
}
TEST(DistributedTest, get_rank_size_group) {
  run_as(Who::group, [](ProcessGroup& group) {
    EXPECT_EQ(group.world_size(), kWorld - 1);
    EXPECT_EQ(group.job_rank(group.rank()), group.rank() + 1);
  });
}
TEST(DistributedTest, get_backend) {
  for (const Who who : {Who::job, Who::full_group, Who::group})
    run_as(who, [](ProcessGroup& group) { EXPECT_EQ(group.backend(), "shm"); });
}

void expect_pairs(const std::function<int(int rank)>& color) {
  run_ranks(kWorld, Link::in_process, [&](ProcessGroup& job) {
    const ProcessGroupPtr pair = job.split(color(job.rank()));
    EXPECT_EQ(pair->world_size(), 2);
    const Tensor sum = full({1}, job.rank());
    pair->all_reduce(sum)->wait();
    EXPECT_EQ(sum.item<double>(), pair->job_rank(0) + pair->job_rank(1));
    EXPECT_EQ(color(pair->job_rank(0)), color(pair->job_rank(1)));
  });
}
TEST(DistributedTest, new_subgroups) {
  expect_pairs([](int rank) { return rank / 2; });
}
TEST(DistributedTest, new_subgroups_by_enumeration) {
  expect_pairs([](int rank) { return rank % 2; });
}
TEST(DistributedTest, new_subgroups_with_group_param) {
  run_as(Who::group, [](ProcessGroup& group) {
    const ProcessGroupPtr part = group.split(group.rank() / 2);
    EXPECT_EQ(part->world_size(), group.rank() < 2 ? 2 : 1);
    part->barrier()->wait();
  });
}
// A group that has ended leaves the ranks' other groups, older and newer, as they were.
void expect_destroyed(Who who) {
  run_as(who, [](ProcessGroup& group) {
    const ProcessGroupPtr older = group.split(0);
    ProcessGroupPtr ended = group.split(0);
    ended->barrier()->wait();
    ended.reset();
    const ProcessGroupPtr newer = group.split(0);
    for (ProcessGroup* each : {&group, older.get(), newer.get()}) {
      const Tensor tensor = full({3}, group.rank() + 1);
      each->all_reduce(tensor)->wait();
      EXPECT_EQ(tensor.to_vector<double>(), std::vector<double>(3, group.world_size() * (group.world_size() + 1) / 2));
    }
  });
}
TEST(DistributedTest, destroy_group) {
  expect_destroyed(Who::group);
}
TEST(DistributedTest, destroy_full_group) {
  expect_destroyed(Who::full_group);
}

TEST(DistributedTest, all_reduce_sum_async) {
  run_as(Who::job, [](ProcessGroup& group) {
    const Tensor tensor = full({3, 3}, group.rank() == 0 ? 2 : 10);
    const WorkPtr work = group.all_reduce(tensor);
    work->wait();
    EXPECT_TRUE(work->is_completed());
    EXPECT_TRUE(work->is_success());
    EXPECT_EQ(tensor.to_vector<double>().front(), reduced(ReduceOp::sum, kWorld));
  });
}

void expect_refused(const std::function<void(ProcessGroup&)>& call, const std::string& what) {
  run_as(Who::job, [&](ProcessGroup& group) {
    const std::string error = error_of([&] { call(group); });
    EXPECT_NE(error.find(what), std::string::npos) << error;
    group.barrier()->wait();  // nothing was sent
  });
}
TEST(DistributedTest, gather_checks) {
  expect_refused([](ProcessGroup& group) { group.gather(ones({1}), ones({1}), kWorld); }, "root is 4");
  expect_refused([](ProcessGroup& group) { group.gather(ones({3}), ones({1}), group.rank()); }, "expected 4");
}
TEST(DistributedTest, scatter_checks) {
  expect_refused([](ProcessGroup& group) { group.scatter(ones({1}), ones({4}), -1); }, "root is -1");
  expect_refused([](ProcessGroup& group) { group.scatter(ones({1}), ones({5}), group.rank()); }, "expected 4");
}

}  // namespace
}  // namespace lockstep::distributed
