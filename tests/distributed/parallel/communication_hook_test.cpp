#include "lockstep/distributed/parallel/reduction/communication_hook.h"

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/step.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;

Values alone(const data::Batch& batch) {
  Net net;
  set_weights(net);
  mean_loss(net, batch).backward();
  return gradients_of(net);
}

class HookOver : public ::testing::TestWithParam<World> {};

// A value is rounded once on its rank and once for each addition: (W + 1) units in the last place of the largest one.
TEST_P(HookOver, HalfTypesStayWithinTheirRounding) {
  const data::Batch batch = make_batch(13);
  const Values expected = alone(batch);
  const double largest = largest_difference(expected, [&] {
    Values zeros = expected;
    for (auto& values : zeros) values.assign(values.size(), 0.0);
    return zeros;
  }());
  for (const auto& [make, dtype, unit] :
       {std::tuple(&fp16_compression, kFloat16, 0x1p-11), std::tuple(&bf16_compression, kBFloat16, 0x1p-8)}) {
    SCOPED_TRACE(name(dtype));
    run_on(GetParam(), [&, make = make, dtype = dtype, unit = unit](const ProcessGroupPtr& group) {
      Net net;
      set_weights(net);
      DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .bucket_bytes = 64, .hook = make()});
      ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); });
      const double off = largest_difference(gradients_of(net), expected);
      EXPECT_LE(off, (group->world_size() + 1) * unit * largest * group->world_size());
      EXPECT_GT(off, 0.0) << "nothing was compressed";
      int halves = 0;
      for (const OperationRecord& record : group->records()) halves += record.operation.dtype == dtype ? 1 : 0;
      EXPECT_GE(halves, 2);
    });
  }
}

// The average of a user's hook arrives, bucket by bucket, in order.
TEST_P(HookOver, AUsersHookIsGivenEveryBucketByName) {
  struct Doubling final : CommunicationHook {
    std::vector<std::string> seen;
    std::string name() const override { return "doubling"; }
    WorkPtr reduce(const GradientBucket& bucket, ProcessGroup& group) override {
      EXPECT_LT(bucket.index, bucket.count);
      for (const nn::NamedTensor& gradient : bucket.gradients) seen.push_back(gradient.name);
      return continue_with(group.all_reduce(bucket.flat, ReduceOp::avg), [flat = bucket.flat]() -> WorkPtr {
        const NoGradGuard no_grad;
        flat.mul_(2.0);
        return nullptr;
      });
    }
  };
  const data::Batch batch = make_batch(13);
  Values expected = alone(batch);
  for (auto& values : expected)
    for (double& value : values) value *= 2.0;
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;
    set_weights(net);
    const auto hook = std::make_shared<Doubling>();
    DistributedDataParallel ddp(net, group, {.first_bucket_bytes = 32, .bucket_bytes = 64, .hook = hook});
    ddp.step(batch, [&](const data::Batch& part) { return mean_loss(net, part); });
    EXPECT_LE(largest_difference(gradients_of(net), expected), 1e-6);
    EXPECT_EQ(hook->seen, (std::vector<std::string>{"fc2.bias", "fc2.weight", "fc1.bias", "fc1.weight"}));
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, HookOver, all_worlds(), world_name);

// A gradient is not divided among the ranks before it is rounded: a hundredth of what float16 can tell from zero would
// be left of the first with W = 512. The second's sum is above float16's range, and its mean is not.
TEST(CommunicationHook, Fp16KeepsGradientsThatItCanRepresent) {
  constexpr int kRanks = 8;
  run_on({kRanks, Link::in_process}, [](const ProcessGroupPtr& group) {
    for (const double value : {0x1p-23, 60000.0}) {
      const GradientBucket bucket{.index = 0, .count = 1, .flat = full({3}, value), .gradients = {}};
      fp16_compression()->reduce(bucket, *group)->wait();
      for (const double mean : bucket.flat.to_vector<double>()) EXPECT_NEAR(mean, value, 1e-3 * value);
    }
  });
}

TEST(CommunicationHook, FailuresOfAContinuationReachTheCaller) {
  auto first = std::make_shared<Work>("first", Milliseconds(1000));
  first->complete();
  const WorkPtr work = continue_with(first, []() -> WorkPtr { throw Error("the second part fell over"); });
  EXPECT_EQ(error_of([&] { work->wait(); }), "the second part fell over");
  EXPECT_EQ(error_of([&] { work->wait(); }), "the second part fell over");
  EXPECT_FALSE(work->is_success());
}

TEST(CommunicationHook, RunsEachPartOnce) {
  int calls = 0;
  const auto done = [] {
    auto work = std::make_shared<Work>("done", Milliseconds(1000));
    work->complete();
    return work;
  };
  const WorkPtr work = continue_with(done(), [&]() -> WorkPtr {
    ++calls;
    return continue_with(done(), [&]() -> WorkPtr {
      calls += 10;
      return nullptr;
    });
  });
  dynamic_cast<ContinuedWork&>(*work).advance();
  EXPECT_EQ(calls, 1);
  work->wait();
  work->wait();
  EXPECT_EQ(calls, 11);
  EXPECT_TRUE(work->is_success());
}

TEST(CommunicationHook, IsRefusedByNameWhereItCannotWork) {
  Net net;
  const std::string error = error_of([&] {
    DistributedDataParallel(net, make_single_process_group(), {.logical_shards = 4, .hook = bf16_compression()});
  });
  EXPECT_NE(error.find("'bf16' cannot be used in lockstep mode"), std::string::npos) << error;
  EXPECT_NE(error_of([] {
              TrainingStep([] { return std::make_unique<Net>(); }, {.hook = fp16_compression()});
            }).find("'fp16' was given without a job"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
