#include "lockstep/distributed/process_group/process_group.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/distributed/ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::Link;
using testing::run_ranks;

/// Odd ones, on both sides of every limit at which an algorithm changes. A world of many threads has less to carry.
std::vector<std::int64_t> sizes_for(const ProcessGroup& group) {
  return {1, 7, 10, 1024, group.world_size() > 8 ? 10'007 : 100'003};
}

struct Case {
  int world_size;
  Link link;
};

class ProcessGroupTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().link == Link::gloo && !gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  }
  void run(const std::function<void(ProcessGroup&)>& body) { run_ranks(GetParam().world_size, GetParam().link, body); }
};

INSTANTIATE_TEST_SUITE_P(All, ProcessGroupTest,
                         ::testing::Values(Case{2, Link::in_process}, Case{3, Link::in_process},
                                           Case{4, Link::in_process}, Case{19, Link::in_process}, Case{2, Link::gloo},
                                           Case{3, Link::gloo}, Case{4, Link::gloo}, Case{2, Link::shm},
                                           Case{3, Link::shm}, Case{4, Link::shm}, Case{19, Link::shm}),
                         [](const auto& info) {
                           return testing::name_of(info.param.link) + std::to_string(info.param.world_size);
                         });

/// Element i on rank r: small integers, so that every sum is exact.
double element(int rank, std::int64_t i) {
  return static_cast<double>((rank + 1) * (i % 5 + 1));
}

Tensor filled(std::int64_t size, DType dtype, const std::function<double(std::int64_t)>& value) {
  Tensor wide = empty({size}, {.dtype = kFloat64});
  for (std::int64_t i = 0; i < size; ++i) wide.data<double>()[i] = value(i);
  return cast_values(wide, dtype);
}

Tensor input_of(const ProcessGroup& group, std::int64_t size, DType dtype = kFloat32) {
  return filled(size, dtype, [&](std::int64_t i) { return element(group.rank(), i); });
}

/// Sum of (r + 1) over all ranks.
double rank_sum(const ProcessGroup& group) {
  return group.world_size() * (group.world_size() + 1) / 2.0;
}

void expect_values(const Tensor& tensor, const std::function<double(std::int64_t)>& value, const char* what) {
  const std::vector<double> actual = tensor.to_vector<double>();
  for (std::size_t i = 0; i < actual.size(); ++i)
    ASSERT_EQ(actual[i], value(static_cast<std::int64_t>(i))) << what << ", element " << i << " of " << actual.size();
}

TEST_P(ProcessGroupTest, AllReduceSum) {
  run([](ProcessGroup& group) {
    ASSERT_GT(group.world_size(), 1);
    for (const std::int64_t size : sizes_for(group))
      for (const DType dtype : {kFloat32, kFloat64, kInt64, kInt32}) {
        const Tensor tensor = input_of(group, size, dtype);
        group.all_reduce(tensor)->wait();
        expect_values(
            tensor, [&](auto i) { return rank_sum(group) * static_cast<double>(i % 5 + 1); }, "sum");
      }
  });
}

TEST_P(ProcessGroupTest, AllReduceHalves) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group))
      for (const DType dtype : {kFloat16, kBFloat16}) {
        // Whole numbers up to 256 are exact in both.
        const Tensor tensor =
            filled(size, dtype, [&](auto i) { return static_cast<double>(group.rank() % 4 + i % 3); });
        group.all_reduce(tensor)->wait();
        double ranks = 0;
        for (int r = 0; r < group.world_size(); ++r) ranks += r % 4;
        expect_values(
            tensor, [&](auto i) { return ranks + static_cast<double>(group.world_size() * (i % 3)); }, "half");
      }
  });
}

TEST_P(ProcessGroupTest, AllReduceOtherReductions) {
  run([](ProcessGroup& group) {
    const int last = group.world_size() - 1;
    for (const std::int64_t size : sizes_for(group)) {
      Tensor tensor = input_of(group, size);
      group.all_reduce(tensor, ReduceOp::max)->wait();
      expect_values(
          tensor, [&](auto i) { return element(last, i); }, "max");
      tensor = input_of(group, size);
      group.all_reduce(tensor, ReduceOp::min)->wait();
      expect_values(
          tensor, [&](auto i) { return element(0, i); }, "min");
      tensor = filled(size, kFloat64, [&](auto i) { return i % 2 ? 2.0 : 1.0; });
      group.all_reduce(tensor, ReduceOp::product)->wait();
      expect_values(
          tensor, [&](auto i) { return i % 2 ? std::pow(2.0, group.world_size()) : 1.0; }, "product");
      tensor = input_of(group, size, kFloat64);
      group.all_reduce(tensor, ReduceOp::avg)->wait();
      expect_values(
          tensor, [&](auto i) { return rank_sum(group) * static_cast<double>(i % 5 + 1) / group.world_size(); }, "avg");
    }
    Tensor flags = filled(10, kBool, [&](auto i) { return i == group.rank() % 10 ? 1.0 : 0.0; });
    group.all_reduce(flags, ReduceOp::max)->wait();
    expect_values(
        flags, [&](auto i) { return i < group.world_size() ? 1.0 : 0.0; }, "any");
  });
}

TEST_P(ProcessGroupTest, AllReduceGivesEveryRankTheSameBits) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group)) {
      const Tensor tensor = testing::make_input({size}, static_cast<std::uint32_t>(group.rank() + 1), kFloat32);
      group.all_reduce(tensor, ReduceOp::avg)->wait();
      const Tensor all = empty({group.world_size(), size});
      group.all_gather(all, tensor)->wait();
      for (int r = 1; r < group.world_size(); ++r)
        ASSERT_EQ(std::memcmp(all.data<float>(), all.data<float>() + r * size, static_cast<std::size_t>(size) * 4), 0);
    }
  });
}

TEST_P(ProcessGroupTest, NanReachesEveryRank) {
  run([](ProcessGroup& group) {
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::min, ReduceOp::max}) {
      const double value = group.rank() == 1 ? std::nan("") : 1.0;
      const Tensor tensor = filled(3, kFloat32, [&](auto i) { return i == 1 ? value : 1.0; });
      group.all_reduce(tensor, op)->wait();
      EXPECT_TRUE(std::isnan(tensor.data<float>()[1])) << name(op);
      EXPECT_FALSE(std::isnan(tensor.data<float>()[0])) << name(op);
    }
  });
}

TEST_P(ProcessGroupTest, Broadcast) {
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

TEST_P(ProcessGroupTest, Reduce) {
  run([](ProcessGroup& group) {
    for (int root = 0; root < group.world_size(); ++root)
      for (const std::int64_t size : sizes_for(group)) {
        const Tensor tensor = input_of(group, size);
        group.reduce(tensor, root)->wait();
        const double factor = group.rank() == root ? rank_sum(group) : group.rank() + 1;
        expect_values(
            tensor, [&](auto i) { return factor * static_cast<double>(i % 5 + 1); }, "reduce");
      }
  });
}

TEST_P(ProcessGroupTest, GatherAndAllGather) {
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

TEST_P(ProcessGroupTest, Scatter) {
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

TEST_P(ProcessGroupTest, ReduceScatter) {
  run([](ProcessGroup& group) {
    for (const std::int64_t size : sizes_for(group)) {
      const Tensor input = input_of(group, size * group.world_size());
      const Tensor output = zeros({size});
      group.reduce_scatter(output, input)->wait();
      expect_values(
          output, [&](auto i) { return rank_sum(group) * static_cast<double>((group.rank() * size + i) % 5 + 1); },
          "reduce_scatter");
    }
  });
}

TEST_P(ProcessGroupTest, AllToAll) {
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

TEST_P(ProcessGroupTest, BarrierWaitsForEveryRank) {
  std::atomic<int> arrived = 0;
  run([&](ProcessGroup& group) {
    for (int round = 1; round <= 5; ++round) {
      ++arrived;
      group.barrier()->wait();
      EXPECT_GE(arrived, round * group.world_size());
    }
  });
}

// Rank 2 joins the collective only after rank 1 has met rank 0 point to point, behind what rank 0 has sent for the
// collective already.
TEST(ProcessGroup, PointToPointDoesNotWaitForACollectiveUnderWay) {
  constexpr std::int64_t kSize = 300'000;
  for (const Link link : {Link::in_process, Link::gloo, Link::shm})
    for (const bool tree : {false, true}) {
      if (link == Link::gloo && !gloo::is_available()) continue;
      const auto body = [&](ProcessGroup& group) {
        const Tensor value = ones({kSize}), unit = ones({kSize}), word = zeros({1});
        const auto collective = [&] { return tree ? group.all_reduce_tree(value, unit, 4) : group.all_reduce(value); };
        WorkPtr work;
        if (group.rank() < 2) work = collective();
        if (group.rank() == 0) {
          std::this_thread::sleep_for(Milliseconds(30));  // the collective's blocks go first
          group.send(word, 1)->wait();
        } else if (group.rank() == 1) {
          group.recv(word, 0)->wait();
          group.send(word, 2)->wait();
        } else {
          group.recv(word, 1)->wait();
          work = collective();
        }
        work->wait();
        expect_values(
            value, [](auto) { return 3.0; }, tree ? "all_reduce_tree" : "all_reduce");
      };
      EXPECT_NO_THROW(run_ranks(3, link, body, Milliseconds(3'000))) << testing::name_of(link) << ", tree: " << tree;
    }
}

TEST_P(ProcessGroupTest, SendAndRecvInAnyOrderOfIssue) {
  run([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    for (const std::int64_t size : sizes_for(group)) {
      const Tensor mine = input_of(group, size), twice = input_of(group, size, kFloat64);
      const Tensor theirs = zeros({size}), theirs_twice = zeros({size}, {.dtype = kFloat64});
      // Everybody receives first: would deadlock if operations queued behind each other.
      const WorkPtr recv = group.recv(theirs, previous);
      const WorkPtr recv_twice = group.recv(theirs_twice, previous);
      const WorkPtr send = group.send(mine, next);
      const WorkPtr send_twice = group.send(twice, next);
      for (const WorkPtr& work : {recv_twice, send_twice, send, recv}) work->wait();
      expect_values(
          theirs, [&](auto i) { return element(previous, i); }, "recv");
      expect_values(
          theirs_twice, [&](auto i) { return element(previous, i); }, "second recv");
    }
  });
}

TEST_P(ProcessGroupTest, Exchange) {
  run([](ProcessGroup& group) {
    const int peer = group.rank() ^ 1;
    if (peer >= group.world_size()) return;
    const std::int64_t mine = group.rank() % 2 ? 10 : 70'000, theirs = group.rank() % 2 ? 70'000 : 10;
    for (int round = 0; round < 3; ++round) {
      const Tensor received = zeros({theirs});
      group.exchange(input_of(group, mine), received, peer)->wait();
      expect_values(
          received, [&](auto i) { return element(peer, i); }, "exchange");
    }
  });
}

TEST_P(ProcessGroupTest, ManyOperationsUnderWay) {
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

TEST_P(ProcessGroupTest, EmptyTensors) {
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

TEST_P(ProcessGroupTest, ArgumentsAreCheckedBeforeAnythingIsSent) {
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

TEST_P(ProcessGroupTest, SeveralThreadsMayIssue) {
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

}  // namespace
}  // namespace lockstep::distributed
