#include "lockstep/distributed/nccl/nccl.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/nccl/device_table.h"
#include "lockstep/distributed/nccl/library.h"
#include "tests/distributed/cuda/cuda_ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::make_input;
using testing::run_cuda_ranks;
using Values = std::vector<double>;

/// Element i on rank r: small integers, so that every sum is exact.
Tensor input_of(int rank, std::int64_t size, DType dtype, Device device) {
  Tensor wide = empty({size}, {.dtype = kFloat64});
  for (std::int64_t i = 0; i < size; ++i) wide.data<double>()[i] = static_cast<double>((rank + 1) * (i % 5 + 1));
  return move_values(cast_values(wide, dtype), device);
}

Values expected(std::int64_t size, double factor) {
  Values values;
  for (std::int64_t i = 0; i < size; ++i) values.push_back(factor * static_cast<double>(i % 5 + 1));
  return values;
}

class Nccl : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { LOCKSTEP_SKIP_WITHOUT_DEVICES(GetParam()); }
  const int world_ = GetParam();
  const double rank_sum_ = GetParam() * (GetParam() + 1) / 2.0;
};
INSTANTIATE_TEST_SUITE_P(Worlds, Nccl, ::testing::Values(2, 3, 4));

TEST_P(Nccl, Reductions) {
  run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
    for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32})
      for (const std::int64_t size : {1, 7, 10'007}) {
        SCOPED_TRACE(::testing::Message() << name(dtype) << " " << size);
        const Tensor sum = input_of(group.rank(), size, dtype, device);
        group.all_reduce(sum)->wait();
        EXPECT_EQ(sum.to_vector<double>(), expected(size, rank_sum_));
        const Tensor largest = input_of(group.rank(), size, dtype, device);
        group.all_reduce(largest, ReduceOp::max)->wait();
        EXPECT_EQ(largest.to_vector<double>(), expected(size, world_));
        const Tensor one = input_of(group.rank(), size, dtype, device);
        group.reduce(one, world_ - 1)->wait();
        EXPECT_EQ(one.to_vector<double>(), expected(size, group.rank() == world_ - 1 ? rank_sum_ : group.rank() + 1.0));
      }
    const Tensor mean = input_of(group.rank(), 1000, kFloat64, device);
    group.all_reduce(mean, ReduceOp::avg)->wait();
    EXPECT_EQ(mean.to_vector<double>()[4], rank_sum_ * 5.0 / world_);
  });
}

TEST_P(Nccl, MovesBlocks) {
  run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
    const auto full_of = [&](double value, std::int64_t size = 3) { return full({size}, value, {.device = device}); };
    const Tensor sent = full_of(group.rank() == 1 ? 5.0 : 0.0);
    group.broadcast(sent, 1)->wait();
    EXPECT_EQ(sent.to_vector<double>(), Values(3, 5.0));

    const Tensor all = full_of(0.0, 3 * world_);
    group.all_gather(all, full_of(group.rank()))->wait();
    Values by_rank;
    for (int r = 0; r < world_; ++r) by_rank.insert(by_rank.end(), 3, r);
    EXPECT_EQ(all.to_vector<double>(), by_rank);

    const Tensor gathered = group.rank() == 0 ? full_of(0.0, 3 * world_) : Tensor();
    group.gather(gathered, full_of(group.rank()))->wait();
    if (group.rank() == 0) {
      EXPECT_EQ(gathered.to_vector<double>(), by_rank);
    }

    const Tensor scattered = full_of(-1.0);
    group.scatter(scattered, group.rank() == 0 ? all : Tensor())->wait();
    EXPECT_EQ(scattered.to_vector<double>(), Values(3, group.rank()));

    const Tensor part = full_of(0.0);
    group.reduce_scatter(part, all)->wait();
    EXPECT_EQ(part.to_vector<double>(), Values(3, group.rank() * world_));

    const Tensor turned = full_of(0.0, 3 * world_);
    group.all_to_all(turned, full_of(group.rank(), 3 * world_))->wait();
    EXPECT_EQ(turned.to_vector<double>(), by_rank);

    // Rank r gives r elements to everybody, so rank 0 none.
    std::vector<std::int64_t> counts;
    std::int64_t total = 0;
    Values pieces;
    for (int r = 0; r < world_; ++r) {
      counts.push_back(r);
      total += r;
      pieces.insert(pieces.end(), static_cast<std::size_t>(r), r);
    }
    const Tensor uneven = full_of(-1.0, total);
    group.all_gather_uneven(uneven, full_of(group.rank(), group.rank()), counts)->wait();
    EXPECT_EQ(uneven.to_vector<double>(), pieces);
    const std::vector<std::int64_t> own(static_cast<std::size_t>(world_), group.rank());
    const Tensor swapped = full_of(-1.0, total);
    group.all_to_all_uneven(swapped, full_of(group.rank(), world_ * group.rank()), counts, own)->wait();
    EXPECT_EQ(swapped.to_vector<double>(), pieces);
    EXPECT_EQ(group.all_gather_object(std::to_string(group.rank())).back(), std::to_string(world_ - 1));

    const int next = (group.rank() + 1) % world_, last = (group.rank() + world_ - 1) % world_;
    const Tensor received = full_of(0.0);
    const WorkPtr send = group.rank() % 2 == 0 ? group.send(full_of(group.rank()), next) : nullptr;
    group.recv(received, last)->wait();
    if (group.rank() % 2 == 1) group.send(full_of(group.rank()), next)->wait();
    if (world_ % 2 == 0) {
      EXPECT_EQ(received.to_vector<double>(), Values(3, last));
    }
    group.barrier()->wait();
  });
}

TEST_P(Nccl, MovesListsOfBlocks) {
  run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
    const auto me = static_cast<std::size_t>(group.rank());
    const auto blocks = [&](const std::function<int(int)>& size, const std::function<double(int)>& value) {
      std::vector<Tensor> list;
      for (int r = 0; r < world_; ++r) list.push_back(full({size(r)}, value(r), {.device = device}));
      return list;
    };
    const auto zero = [](int) { return 0.0; };
    const auto expect = [&](const std::vector<Tensor>& list, const std::function<double(int)>& value) {
      for (int r = 0; r < world_; ++r) {
        const Tensor& block = list[static_cast<std::size_t>(r)];
        EXPECT_EQ(block.to_vector<double>(), Values(static_cast<std::size_t>(block.numel()), value(r)));
      }
    };
    const auto rank_of = [](int r) { return static_cast<double>(r); };
    const auto same = [](int) { return 3; };
    const std::vector<Tensor> gathered = blocks(rank_of, zero);
    group.all_gather(gathered, full({group.rank()}, group.rank(), {.device = device}))->wait();
    expect(gathered, rank_of);
    const std::vector<Tensor> at_root = group.rank() == 1 ? blocks(same, zero) : std::vector<Tensor>();
    group.gather(at_root, full({3}, group.rank(), {.device = device}), 1)->wait();
    if (group.rank() == 1) expect(at_root, rank_of);
    const Tensor scattered = zeros({3}, {.device = device});
    group.scatter(scattered, at_root, 1)->wait();
    EXPECT_EQ(scattered.to_vector<double>(), Values(3, group.rank()));
    const std::vector<Tensor> given = blocks([&](int r) { return group.rank() + r; }, rank_of);
    const std::vector<Tensor> taken = blocks([&](int r) { return group.rank() + r; }, zero);
    group.all_to_all(taken, given)->wait();
    expect(taken, [&](int) { return group.rank(); });
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
      const std::vector<Tensor> parts = blocks(rank_of, [&](int r) { return (group.rank() + 1) * (r + 1); });
      const Tensor reduced = zeros({group.rank()}, {.device = device});
      group.reduce_scatter(reduced, parts, op)->wait();
      EXPECT_EQ(reduced.to_vector<double>(),
                Values(me, rank_sum_ * (group.rank() + 1) / (op == ReduceOp::avg ? world_ : 1)));
    }
  });
}

TEST_P(Nccl, ExchangesBothWaysAtOnce) {
  if (world_ != 2) GTEST_SKIP() << "between two";
  run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
    const Tensor mine = full({1000}, group.rank(), {.device = device}), theirs = empty({1000}, {.device = device});
    group.exchange(mine, theirs, 1 - group.rank())->wait();
    EXPECT_EQ(theirs.to_vector<double>(), Values(1000, 1 - group.rank()));
  });
}

TEST_P(Nccl, TheTreesSumHasTheBitsOfTheCpu) {
  struct Sizes {
    std::int64_t shards, size;
  };
  // The last by blocks, where ranks are more than two.
  for (const Sizes& sizes : {Sizes{4, 257}, {8, 257}, {16, 257}, {8, 70'001}}) {
    const std::int64_t shards = sizes.shards, size = sizes.size;
    run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
      const auto units = static_cast<std::int64_t>(tree_units(shards_of_worker(shards, world_, group.rank())).size());
      for (const DType dtype : {kFloat32, kFloat16}) {
        const Tensor values = make_input({units * size}, static_cast<std::uint32_t>(group.rank()), dtype);
        const Tensor by = full({1}, 3.0, {.dtype = kFloat64});
        const Tensor cpu = empty({size}, {.dtype = dtype});
        group.all_reduce_tree(cpu, values, shards, by)->wait();
        const Tensor here = empty({size}, {.dtype = dtype, .device = device});
        const Tensor moved = move_values(values, device);
        group.all_reduce_tree(here, moved, shards, move_values(by, device))->wait();
        EXPECT_EQ(here.to_vector<double>(), cpu.to_vector<double>());
      }
    });
  }
}

TEST_P(Nccl, WorkThatFollowsWaitsForTheOperationAndTheOperationForWhatCameBefore) {
  run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
    const Tensor x = zeros({100'000}, {.device = device});
    for (int round = 1; round <= 3; ++round) {
      fill_values(x, round);
      group.all_reduce(x)->wait();
      const Tensor copy = copy_contiguous(x);
      EXPECT_EQ(copy.to_vector<float>().back(), static_cast<float>(round * world_));
    }
  });
}

TEST_P(Nccl, CpuTensorsAreServedInTheSameOrder) {
  run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
    const Tensor host = full({4}, 1.0), there = full({4}, 1.0, {.device = device});
    group.all_reduce(host)->wait();
    group.all_reduce(there)->wait();
    group.all_reduce(host)->wait();
    EXPECT_EQ(host.to_vector<double>(), Values(4, world_ * world_));
    EXPECT_EQ(there.to_vector<double>(), Values(4, world_));
    const auto records = group.records();
    ASSERT_EQ(records.size(), 3u);
    for (std::size_t i = 0; i < records.size(); ++i) EXPECT_EQ(records[i].operation.number, i);
  });
}

TEST_P(Nccl, WrongTensorsAreRefusedBeforeAnythingIsSent) {
  run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
    const Device other{kCUDA, (device.index + 1) % world_};
    EXPECT_NE(error_of([&] { group.all_reduce(zeros({2}, {.device = other})); }).find("found a tensor on"),
              std::string::npos);
    EXPECT_NE(error_of([&] { group.all_reduce(zeros({2}, {.dtype = kBool, .device = device})); }).find("bool"),
              std::string::npos);
    const Tensor bits = zeros({2}, {.dtype = kInt32, .device = device});
    EXPECT_NE(error_of([&] { group.all_reduce(bits, ReduceOp::bxor); }).find("NCCL has no bitwise reductions"),
              std::string::npos);
  });
}

TEST_P(Nccl, OneFailureEndsWhatBothDevicesDo) {
  std::vector<std::string> host(static_cast<std::size_t>(world_)), there = host;
  run_cuda_ranks(world_, [&](ProcessGroup& group, Device device) {
    EXPECT_EQ(group.backend(), "nccl");
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto all_reduce = [&](Device on) { group.all_reduce(zeros({2}, {.device = on}))->wait(); };
    if (group.rank() == 1) {
      group.barrier()->wait();
      group.abort("enough");
    } else {
      host[rank] = error_of([&] {
        group.barrier()->wait();  // ends badly if rank 1 gives up before this rank has seen that it has ended
        all_reduce(Device(kCPU));
      });
    }
    EXPECT_TRUE(group.failed());
    there[rank] = error_of([&] { all_reduce(device); });
  });
  for (const std::string& message : there) EXPECT_NE(message.find("enough"), std::string::npos) << message;
  EXPECT_NE(host[0].find("enough"), std::string::npos) << host[0];
}

TEST_P(Nccl, ARankThatDoesNotComeIsNamedByTheDeadline) {
  std::vector<std::string> messages(static_cast<std::size_t>(world_));
  run_cuda_ranks(
      world_,
      [&](ProcessGroup& group, Device device) {
        const Tensor x = zeros({10}, {.device = device});
        if (group.rank() == 1) {
          std::this_thread::sleep_for(Milliseconds(3500));
          return;
        }
        try {
          const WorkPtr work = group.all_reduce(x);
          while (!work->is_completed()) std::this_thread::sleep_for(Milliseconds(5));
          work->wait();
        } catch (const ProcessGroupError& error) {
          messages[static_cast<std::size_t>(group.rank())] = error.what();
        }
        EXPECT_TRUE(group.failed());
        EXPECT_FALSE(error_of([&] { group.all_reduce(x); }).empty());
      },
      Milliseconds(1000));
  for (int rank = 0; rank < world_; ++rank)
    if (rank != 1) {
      const std::string& message = messages[static_cast<std::size_t>(rank)];
      EXPECT_NE(message.find("rank 1"), std::string::npos) << message;
      EXPECT_NE(message.find("all_reduce #0"), std::string::npos) << message;
    }
}

TEST(NcclLibrary, HasEveryFunction) {
  if (const std::string obstacle = nccl::Library::obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  int version = -1;
  EXPECT_EQ(nccl::Library::get().get_version(&version), ncclSuccess);
  EXPECT_TRUE(version == 0 || version >= 21800) << version;  // 0: emulated
}

TEST(NcclDevices, TwoRanksOnOneDeviceAreNamed) {
  const nccl::RankDevice a{"host1", "GPU-1", "cuda:0, H100, on host host1"};
  const nccl::RankDevice b{"host1", "GPU-2", "cuda:1, H100, on host host1"};
  const nccl::RankDevice elsewhere{"host2", "GPU-1", "cuda:0, H100, on host host2"};
  nccl::check_distinct({a, b, elsewhere});
  const std::string message = error_of([&] { nccl::check_distinct({b, elsewhere, a, a}); });
  EXPECT_NE(message.find("ranks 2 and 3 are both on GPU-1"), std::string::npos) << message;
}

TEST(NcclManyOperations, TenThousandAreInOrder) {
  LOCKSTEP_SKIP_WITHOUT_DEVICES(2);
  const int count = cuda::device_name(0).find("emulated") == std::string::npos ? 10'000 : 300;
  run_cuda_ranks(2, [&](ProcessGroup& group, Device device) {
    std::vector<Tensor> results;
    for (int i = 0; i < count; ++i) {
      results.push_back(full({100}, group.rank() == 0 ? 1.0 : i % 8, {.device = device}));
      group.all_reduce(results.back())->wait();
    }
    for (int i = 0; i < count; ++i)
      ASSERT_EQ(results[static_cast<std::size_t>(i)].to_vector<float>().back(), static_cast<float>(1 + i % 8)) << i;
  });
}

}  // namespace
}  // namespace lockstep::distributed
