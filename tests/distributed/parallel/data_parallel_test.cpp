#include "lockstep/distributed/parallel/data_parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "lockstep/autograd/anomaly.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_close;
using lockstep::testing::make_input;

struct Net : nn::Module {
  nn::Linear fc1{this, "fc1", 6, 5};
  nn::Linear fc2{this, "fc2", 5, 3};
  Tensor forward(Tensor x) override { return fc2(relu(fc1(x))); }
};

struct NormNet : nn::Module {
  nn::BatchNorm1d norm{this, "norm", 4};
  Tensor forward(Tensor x) override { return norm(x); }
};

std::vector<Device> cpus(std::initializer_list<int> indices) {
  std::vector<Device> devices;
  for (int i : indices) devices.emplace_back(kCPU, i);
  return devices;
}

Tensor loss_of(nn::Module& module, const data::Batch& part) {
  return cross_entropy(module.forward(part.x), part.y);
}

data::Batch make_batch(std::int64_t n) {
  data::Batch batch;
  batch.x = make_input({n, 6}, 7, kFloat32);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < n; ++i) labels.push_back(i % 3);
  batch.y = tensor(labels);
  return batch;
}

class DataParallelOver : public ::testing::TestWithParam<std::vector<Device>> {};

TEST_P(DataParallelOver, ForwardAndBackwardEqualASingleDevice) {
  manual_seed(3);
  Net single;
  manual_seed(3);
  DataParallel parallel = make_data_parallel<Net>(GetParam());
  Tensor x = make_input({7, 6}, 5, kFloat32);
  Tensor x2 = x.clone();
  x.set_requires_grad(true);
  x2.set_requires_grad(true);
  const Tensor expected = single(x);
  const Tensor actual = parallel(x2);
  expect_close(actual, expected, 1e-6, 1e-6);
  EXPECT_EQ(actual.device(), GetParam().front());
  const Tensor weight = make_input({7, 3}, 9, kFloat32);
  mul(expected, weight).sum().backward();
  mul(actual, weight).sum().backward();
  expect_close(x2.grad(), x.grad(), 1e-5, 1e-6);
  const auto want = single.named_parameters();
  const auto got = parallel.module().named_parameters();
  for (std::size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(want[i].name);
    expect_close(got[i].tensor.grad(), want[i].tensor.grad(), 1e-5, 1e-6);
  }
}

TEST_P(DataParallelOver, StepEqualsASingleDevice) {
  for (const std::int64_t n : {7, 8, 1}) {
    SCOPED_TRACE(n);
    manual_seed(3);
    Net single;
    manual_seed(3);
    DataParallel parallel = make_data_parallel<Net>(GetParam());
    const data::Batch batch = make_batch(n);
    const Tensor loss = loss_of(single, batch);
    loss.backward();
    EXPECT_NEAR(parallel.step(batch, loss_of).item<double>(), loss.item<double>(), 1e-6);
    const auto want = single.parameters();
    const auto got = parallel.module().parameters();
    for (std::size_t i = 0; i < want.size(); ++i) expect_close(got[i].grad(), want[i].grad(), 1e-5, 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DataParallelOver,
                         ::testing::Values(cpus({0}), cpus({0, 1}), cpus({0, 0}), cpus({0, 1, 2}), cpus({0, 1, 0, 1})));

TEST(DataParallel, ReplicasFollowTheModule) {
  DataParallel parallel = make_data_parallel<Net>(cpus({0, 1}));
  const Tensor x = make_input({4, 6}, 5, kFloat32);
  for (const Tensor& parameter : parallel.module().parameters()) fill_values(parameter, 0.5);
  expect_close(parallel(x), parallel.module()(x), 1e-6, 1e-6);
}

// Those that its factory registers, on each replica; those of the only module on one device.
TEST(DataParallel, HooksOfAReplicaRun) {
  for (const int devices : {1, 2}) {
    std::atomic<int> calls = 0;
    const auto factory = [&calls]() -> std::unique_ptr<nn::Module> {
      auto net = std::make_unique<Net>();
      net->register_forward_hook([&calls](auto&, const Tensor&, Tensor&) { ++calls; });
      return net;
    };
    DataParallel parallel(factory, devices == 1 ? cpus({0}) : cpus({0, 1}));
    parallel(make_input({4, 6}, 5, kFloat32));
    EXPECT_EQ(calls, devices);
  }
}

// Those that are registered on the module afterwards, or on one inside it, run on each replica too, until they are
// removed from there.
TEST(DataParallel, HooksOfTheModuleRunInEveryReplica) {
  std::atomic<int> before = 0, after = 0, backward = 0, own = 0;
  const auto factory = [&own]() -> std::unique_ptr<nn::Module> {
    auto net = std::make_unique<Net>();
    net->fc1.register_forward_hook([&own](auto&, const Tensor&, Tensor&) { ++own; });
    return net;
  };
  DataParallel parallel(factory, cpus({0, 1, 2}));
  auto& net = dynamic_cast<Net&>(parallel.module());
  const Tensor x = make_input({6, 6}, 5, kFloat32).requires_grad_();
  const std::uint64_t first =
      net.fc1.register_forward_pre_hook([&](nn::Module&, Tensor& in) { ++before, in = in * 2.0; });
  net.fc1.register_forward_hook([&](nn::Module& layer, const Tensor&, Tensor& out) {
    ++after;
    EXPECT_EQ(layer.device(), out.device());
  });
  net.register_full_backward_hook([&](nn::Module&, Tensor&, const Tensor&) { ++backward; });
  const Tensor y = parallel(x);
  expect_close(y, net(x), 1e-6, 1e-6);
  EXPECT_EQ(before.exchange(0), 4);
  EXPECT_EQ(after.exchange(0), 4);
  EXPECT_EQ(own.exchange(0), 4);
  sum(y).backward();
  EXPECT_EQ(backward.exchange(0), 3);
  net.fc1.remove_hook(first);
  net.fc1.remove_hook(1);  // the factory's
  parallel.step(make_batch(6),
                [](nn::Module& module, const data::Batch& part) { return cross_entropy(module(part.x), part.y); });
  EXPECT_EQ(before, 0);
  EXPECT_EQ(own, 0);
  EXPECT_EQ(after, 3);
  EXPECT_EQ(backward, 3);
}

TEST(DataParallel, ReplicasAreCastWithTheModule) {
  for (const std::int64_t shards : {0, 4}) {
    DataParallel parallel([] { return std::make_unique<Net>(); }, cpus({0, 1}), {.logical_shards = shards});
    TrainingStep single([] { return std::make_unique<Net>(); }, {.logical_shards = shards});
    nn::copy_parameters_and_buffers(parallel.module(), single.module());
    data::Batch batch = make_batch(7);
    for (const DType dtype : {kFloat32, kFloat64}) {
      parallel.module().to(dtype);
      single.module().to(dtype);
      batch.x = batch.x.to(dtype);
      EXPECT_NEAR(parallel.step(batch, loss_of).item<double>(), single(batch, loss_of).item<double>(), 1e-6) << shards;
      const auto got = parallel.module().parameters(), want = single.module().parameters();
      for (std::size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].grad().dtype(), dtype);
        expect_close(got[i].grad(), want[i].grad(), 1e-5, 1e-6);
      }
    }
  }
  DataParallel moved = make_data_parallel<Net>(cpus({0, 1}));
  moved.module().to(Device(kCPU, 3));
  EXPECT_EQ(error_of([&] { moved.step(make_batch(7), loss_of); }),
            "[TrainingStep] the module is on cpu:3 now, and its replicas were made for devices of which cpu:0 is the "
            "first; leave it there, or make another step of it for other devices");
}

TEST(DataParallel, RunningStatisticsAreTheFirstReplicas) {
  DataParallel parallel = make_data_parallel<NormNet>(cpus({0, 1}));
  const Tensor x = make_input({6, 4}, 5, kFloat32);
  parallel(x);
  NormNet expected;
  expected(rows(x, 0, 3));
  const auto got = parallel.module().named_buffers();
  const auto want = expected.named_buffers();
  for (std::size_t i = 0; i < want.size(); ++i) expect_close(got[i].tensor, want[i].tensor, 1e-6, 1e-7);
}

TEST(DataParallel, EvaluationModeReachesTheReplicas) {
  DataParallel parallel = make_data_parallel<NormNet>(cpus({0, 1}));
  parallel.module().eval();
  const Tensor x = make_input({6, 4}, 5, kFloat32);
  expect_close(parallel(x), x, 1e-4, 1e-4);  // running mean 0, variance 1
}

TEST(DataParallel, EachLayersModeReachesTheReplicas) {
  struct Two : nn::Module {
    nn::BatchNorm1d kept{this, "kept", 4}, trained{this, "trained", 4};
    Tensor forward(Tensor x) override { return cat({kept(x), trained(x)}, 1); }
  };
  DataParallel parallel([] { return std::make_unique<Two>(); }, cpus({0, 1}));
  auto& net = dynamic_cast<Two&>(parallel.module());
  net.kept.eval();
  const Tensor x = make_input({6, 4}, 5, kFloat32), y = parallel(x);
  expect_close(y.narrow(1, 0, 4), x, 1e-4, 1e-4);  // running mean 0, variance 1
  EXPECT_GT((y.narrow(1, 4, 4) - x).abs().max().item<double>(), 0.1);
}

TEST(DataParallel, FrozenParametersGetNoGradient) {
  DataParallel parallel = make_data_parallel<Net>(cpus({0, 1}));
  const auto parameters = parallel.module().parameters();
  parameters[0].set_requires_grad(false);
  parallel.step(make_batch(4), loss_of);
  EXPECT_FALSE(parameters[0].grad().defined());
  EXPECT_TRUE(parameters[1].grad().defined());
}

TEST(DataParallel, AReplicasExceptionIsRethrown) {
  DataParallel parallel = make_data_parallel<Net>(cpus({0, 1}));
  const auto thrower = [](nn::Module& module, const data::Batch& part) {
    if (part.x.device().index == 1) throw Error("replica 1 fell over");
    return loss_of(module, part);
  };
  EXPECT_EQ(error_of([&] { parallel.step(make_batch(4), thrower); }), "replica 1 fell over");
}

TEST(DataParallel, ABrokenPassLeavesNothingBehind) {
  static bool broken = false;
  struct Fails : nn::Module {
    nn::Linear fc{this, "fc", 2, 1};
    Tensor forward(Tensor x) override {
      const Tensor y = fc(x);
      if (broken && x.size(0) == 1) y.register_hook([](const Tensor&) -> Tensor { throw Error("broken"); });
      return y;
    }
  };
  DataParallel parallel = make_data_parallel<Fails>(cpus({0, 1}));
  broken = true;
  EXPECT_NE(error_of([&] { sum(parallel(ones({3, 2}))).backward(); }).find("broken"), std::string::npos);
  broken = false;
  for (int pass = 0; pass < 2; ++pass) {
    parallel.module().zero_grad();
    sum(parallel(ones({4, 2}))).backward();
    EXPECT_EQ(parallel.module().parameters()[1].grad().item<double>(), 4.0) << pass;
  }
}

TEST(DataParallel, ARetainedGraphGivesTheSameAgain) {
  DataParallel parallel = make_data_parallel<Net>(cpus({0, 1}));
  const Tensor x = make_input({5, 6}, 5, kFloat32).requires_grad_(), y = sum(square(parallel(x)));
  const auto pass = [&] {
    parallel.module().zero_grad();
    x.set_grad({});
    y.backward({}, /*retain_graph=*/true);
    return std::pair(x.grad().to_vector<float>(), parallel.module().parameters()[0].grad().to_vector<float>());
  };
  const auto first = pass();
  EXPECT_EQ(pass(), first);
}

TEST(DataParallel, SeveralForwardPassesMayComeBeforeABackward) {
  manual_seed(3);
  Net single;
  manual_seed(3);
  DataParallel parallel = make_data_parallel<Net>(cpus({0, 1, 2}));
  const Tensor x = make_input({5, 6}, 5, kFloat32), other = make_input({7, 6}, 6, kFloat32);
  (mean(single(x)) - mean(single(other))).backward();
  const Tensor loss = mean(parallel(x)) - mean(parallel(other));
  {
    const NoGradGuard looking;
    parallel(other);
  }
  loss.backward();
  for (std::size_t p = 0; p < 4; ++p)
    expect_close(parallel.module().parameters()[p].grad(), single.parameters()[p].grad(), 1e-5);
  // What the module is given, by an address too, reaches the replicas.
  parallel.module().parameters()[3].data<float>()[0] += 1.0F;
  single.parameters()[3].data<float>()[0] += 1.0F;
  expect_close(parallel(x), single(x), 1e-5);
}

TEST(DataParallel, ReplicasComputeUnderTheCallersGuards) {
  struct Tells : nn::Module {
    nn::Linear fc{this, "fc", 4, 4};
    Tensor forward(Tensor x) override {
      const Tensor y = fc(x);
      EXPECT_EQ(y.dtype(), kBFloat16);
      EXPECT_TRUE(AnomalyMode::enabled());
      return y;
    }
  };
  DataParallel parallel = make_data_parallel<Tells>(cpus({0, 1}));
  const AutocastGuard autocast(kBFloat16, kCPU);
  const AnomalyMode anomaly;
  const Tensor y = parallel(ones({6, 4}));
  sum(y.to(kFloat32)).backward();
  EXPECT_TRUE(parallel.module().parameters()[0].grad().defined());
}

TEST(DataParallel, ReplicasDrawDifferentNumbers) {
  struct Dropped : nn::Module {
    nn::Dropout dropout{this, "dropout", 0.5};
    Tensor forward(Tensor x) override { return dropout(x); }
  };
  DataParallel parallel = make_data_parallel<Dropped>(cpus({0, 1}));
  const Tensor out = parallel(ones({2, 256}));
  EXPECT_NE(rows(out, 0, 1).to_vector<float>(), rows(out, 1, 1).to_vector<float>());
}

TEST(DataParallel, RefusesBadInput) {
  EXPECT_NE(error_of([] { make_data_parallel<Net>({}); }).find("no devices"), std::string::npos);
  DataParallel parallel = make_data_parallel<Net>(cpus({0, 1}));
  EXPECT_NE(error_of([&] { parallel(zeros({0, 6})); }).find("at least one sample"), std::string::npos);
  EXPECT_NE(error_of([&] { parallel.step({}, loss_of); }).find("empty"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
