// Several devices of one process where programs do more with them than one forward and its backward at a time.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/data_parallel.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::expect_close;

std::vector<Device> cpus(std::initializer_list<int> indices) {
  std::vector<Device> devices;
  for (int i : indices) devices.emplace_back(kCPU, i);
  return devices;
}

/// One layer, and a function of its result.
struct Ends : nn::Module {
  explicit Ends(std::function<Tensor(const Tensor&)> end) : end(std::move(end)) {}
  nn::Linear fc{this, "fc", kFeatures, kClasses};
  std::function<Tensor(const Tensor&)> end;
  Tensor forward(Tensor x) override { return end(fc(x)); }
};

DataParallel ending(std::function<Tensor(const Tensor&)> end) {
  return DataParallel([end] { return std::make_unique<Ends>(end); }, cpus({0, 1}));
}

TEST(Devices, AResultOfAnIntegerTypeNeedsNoGradient) {
  DataParallel parallel = ending([](const Tensor& y) { return y.argmax(1); });
  const Tensor x = make_batch(5).x.requires_grad_(), labels = parallel(x);
  EXPECT_EQ(labels.to_vector<std::int64_t>(), parallel.module()(x).to_vector<std::int64_t>());
  EXPECT_FALSE(labels.requires_grad());
}

TEST(Devices, PartsThatNeedNoGradientGetNone) {
  DataParallel none = ending([](const Tensor& y) { return y.detach(); });
  EXPECT_FALSE(none(make_batch(5).x).requires_grad());
  EXPECT_NE(error_of([&] { none(make_batch(5).x).sum().backward(); }), "");
  DataParallel some = ending([](const Tensor& y) { return y.size(0) == 3 ? y : y.detach(); });
  set_weights(some.module());
  const Tensor x = make_batch(5).x.requires_grad_();
  some(x).sum().backward();
  for (const float value : some.module().parameters()[1].grad().to_vector<float>()) EXPECT_EQ(value, 3.0F);
  const std::vector<float> grad = x.grad().to_vector<float>();
  for (std::size_t i = 0; i < grad.size(); ++i) EXPECT_EQ(grad[i] != 0.0F, i < 3 * kFeatures) << i;
}

// Gradients of the parameters are where these are; that of the input where the input is.
TEST(Devices, GradientsAreWhereTheirTensorsAre) {
  DataParallel parallel = make_data_parallel<Net>(cpus({1, 2}));
  Net single;
  set_weights(parallel.module());
  set_weights(single);
  const Tensor x = make_batch(5).x.requires_grad_(), same = make_batch(5).x.requires_grad_();
  const Tensor y = parallel(x);
  EXPECT_EQ(y.device(), Device(kCPU, 1));
  y.square().sum().backward();
  single(same).square().sum().backward();
  EXPECT_EQ(x.grad().device(), Device(kCPU, 0));
  expect_close(x.grad(), same.grad(), 1e-5, 1e-6);
  const auto got = parallel.module().parameters(), want = single.parameters();
  for (std::size_t p = 0; p < want.size(); ++p) {
    EXPECT_EQ(got[p].grad().device(), Device(kCPU, 1));
    expect_close(got[p].grad().to(kCPU), want[p].grad(), 1e-5, 1e-6);
  }
}

TEST(Devices, AWriteThroughAnAddressReachesReplicasWhateverTheStrides) {
  struct Turned : nn::Module {
    nn::Parameter weight{this, "weight", ones({kClasses, kFeatures}).t()};
    Tensor forward(Tensor x) override { return matmul(x, weight); }
  };
  DataParallel parallel = make_data_parallel<Turned>(cpus({0, 1}));
  const Tensor x = make_batch(4).x;
  const Tensor weight = parallel.module().parameters()[0];
  ASSERT_FALSE(weight.is_contiguous());
  for (int i = 0; i < 3; ++i) {
    expect_close(parallel(x), parallel.module()(x), 1e-6, 1e-6);
    weight.data<float>()[i] += 2.0F;
  }
}

struct Dropped : nn::Module {
  nn::Parameter weight{this, "weight", ones({1})};
  nn::Dropout dropout{this, "dropout", 0.5};
  Tensor forward(Tensor x) override { return dropout(x * weight); }
};

// As those of one module do. Outside of a guard each forward is a step of its own.
TEST(Devices, ForwardPassesUnderOneKeyDrawDifferentNumbers) {
  const Tensor x = ones({2, 256});
  const auto draws = [&](const std::vector<Device>& devices) {
    DataParallel parallel = make_data_parallel<Dropped>(devices);
    std::vector<std::vector<float>> drawn;
    for (int round = 0; round < 2; ++round) {
      const RandomKeyGuard key(7, 0);
      for (int i = 0; i < 3; ++i)
        for (int row = 0; row < 2; ++row) drawn.push_back(rows(parallel(x), row, 1).to_vector<float>());
      drawn.push_back(dropout(rows(x, 0, 1), 0.5, true).to_vector<float>());
    }
    return drawn;
  };
  for (const std::vector<Device>& devices : {cpus({0}), cpus({0, 1})}) {
    const auto drawn = draws(devices);
    for (std::size_t i = 0; i < 7; ++i) {
      EXPECT_EQ(drawn[i], drawn[i + 7]) << i;  // the guard's alone
      for (std::size_t j = 0; j < i; ++j) EXPECT_NE(drawn[i], drawn[j]) << i << " " << j;
    }
  }
  const RandomKeyGuard key(7, 0);
  Dropped plain;
  plain(x);
  const std::vector<float> second = plain(x).to_vector<float>();
  const RandomKeyGuard again(7, 0);
  DataParallel one = make_data_parallel<Dropped>(cpus({0}));
  one(x);
  EXPECT_EQ(one(x).to_vector<float>(), second);
}

TEST(Devices, SeveralThreadsMayUseThem) {
  DataParallel parallel = make_data_parallel<Net>(cpus({0, 1}));
  Net single;
  set_weights(parallel.module());
  set_weights(single);
  constexpr int kThreads = 3, kRounds = 50;
  std::vector<Tensor> inputs, results;
  for (int t = 0; t < kThreads; ++t) {
    inputs.push_back(make_batch(4 + t, static_cast<std::uint32_t>(t)).x);
    results.push_back(single(inputs.back()).detach());
    for (int round = 0; round < kRounds; ++round) single(inputs.back()).square().sum().backward();
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      const auto i = static_cast<std::size_t>(t);
      for (int round = 0; round < kRounds; ++round) {
        const Tensor y = parallel(inputs[i]);
        expect_close(y, results[i], 1e-5, 1e-6);
        y.square().sum().backward();
      }
    });
  for (std::thread& thread : threads) thread.join();
  const auto got = parallel.module().parameters(), want = single.parameters();
  for (std::size_t p = 0; p < want.size(); ++p) expect_close(got[p].grad(), want[p].grad(), 1e-3, 1e-4);
}

// On each of the devices' threads, and from a DataParallel inside.
TEST(Devices, ACallOfTheSameDevicesInsideIsAnError) {
  std::unique_ptr<DataParallel> outer;
  std::atomic<int> calls_of = -1;  // the device whose replica calls
  std::atomic<bool> through_another = false;
  DataParallel other = ending([&](const Tensor& y) {
    if (through_another) (*outer)(make_batch(4).x);
    return y;
  });
  const auto factory = [&] {
    return std::make_unique<Ends>([&](const Tensor& y) {
      if (calls_of != y.device().index) return y;
      if (through_another) return other(make_batch(4).x);
      return (*outer)(make_batch(4).x);
    });
  };
  outer = std::make_unique<DataParallel>(factory, cpus({0, 1}));
  const auto loss = [](nn::Module& net, const data::Batch& part) { return net(part.x).sum(); };
  for (const bool another : {false, true}) {
    through_another = another;
    for (const int device : {0, 1}) {
      calls_of = device;
      const std::string error = error_of([&] { (*outer)(make_batch(4).x); });
      EXPECT_NE(error.find("[DataParallel] expected a call from outside of the module"), std::string::npos) << error;
      EXPECT_EQ(error_of([&] { outer->step(make_batch(4), loss); }), error);
    }
  }
  calls_of = -1;
  const Tensor y = (*outer)(make_batch(4).x);
  const auto in_loss = [&](nn::Module& net, const data::Batch& part) {
    const Tensor own = net(part.x).sum();
    return own.device().index == 1 ? own + y.sum().to(own.device()) : own;
  };
  EXPECT_NE(error_of([&] { outer->step(make_batch(4), in_loss); }).find("expected a call from outside"),
            std::string::npos);
  y.sum().backward();
}

}  // namespace
}  // namespace lockstep::distributed
