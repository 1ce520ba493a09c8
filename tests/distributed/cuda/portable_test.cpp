// Note [Portable arithmetic]: a CUDA device computes the CPU's bits.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "apps/models/models.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/graph.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/lockstep_fingerprint.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/cuda/cuda_ranks.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::make_input;

const Device kGpu{kCUDA, 0};

class Portable : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cuda::is_available()) GTEST_SKIP() << "needs a CUDA device: " << cuda::why_unavailable();
    cuda::set_portable(true);
  }
  void TearDown() override { cuda::set_portable(false); }
};

using Values = std::vector<std::vector<float>>;

/// The values of what body(inputs) returns and of the gradients of its sum of squares, with the inputs on `device`.
Values run_on(Device device, const std::vector<Tensor>& inputs,
              const std::function<Tensor(const std::vector<Tensor>&)>& body) {
  std::vector<Tensor> here;
  for (const Tensor& input : inputs) {
    here.push_back(copy_contiguous(move_values(input, device)));
    if (input.is_floating_point()) here.back().set_requires_grad(true);
  }
  const Tensor out = body(here);
  out.backward(move_values(make_input(out.sizes(), 77, kFloat32), device));
  Values values{out.detach().to_vector<float>()};
  for (const Tensor& input : here)
    if (input.grad().defined()) values.push_back(input.grad().to_vector<float>());
  return values;
}

void expect_the_cpus_bits(const std::vector<Tensor>& inputs,
                          const std::function<Tensor(const std::vector<Tensor>&)>& body) {
  const Values there = run_on(Device(), inputs, body), here = run_on(kGpu, inputs, body);
  ASSERT_EQ(here.size(), there.size());
  for (std::size_t i = 0; i < here.size(); ++i) EXPECT_EQ(here[i], there[i]) << "value " << i;
}

TEST_F(Portable, Products) {
  for (const auto& [m, n, k] : {std::array{5, 7, 3}, {33, 18, 70}, {1, 10, 513}, {17, 1, 1100}}) {
    SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k);
    const Tensor x = make_input({m, k}, 1, kFloat32), weight = make_input({n, k}, 2, kFloat32);
    expect_the_cpus_bits({x, weight, make_input({n}, 3, kFloat32)},
                         [](const auto& t) { return linear(t[0], t[1], t[2]).relu(); });
  }
  expect_the_cpus_bits({make_input({3, 9, 20}, 4, kFloat32), make_input({3, 20, 6}, 5, kFloat32)},
                       [](const auto& t) { return t[0].matmul(t[1]); });
  expect_the_cpus_bits(
      {make_input({130, 4}, 6, kFloat32), make_input({3, 4}, 7, kFloat32), make_input({3}, 8, kFloat32)},
      [](const auto& t) { return linear(t[0], t[1], t[2]); });
}

struct Convolution {
  std::int64_t n, in, side, out, kernel, padding;
};

TEST_F(Portable, ConvolutionsUnderAPool) {
  for (const Convolution& c :
       {Convolution{9, 1, 28, 10, 5, 0},                                  // LeNet's
        Convolution{9, 10, 12, 20, 5, 0}, Convolution{2, 8, 9, 5, 3, 1},  // channels that fill vectors
        Convolution{2, 16, 10, 3, 7, 3},                                  // rows of a patch in two parts
        Convolution{1, 2, 70, 2, 2, 0},                                   // lists by bands of rows
        Convolution{1, 3, 6, 4, 11, 5}}) {
    SCOPED_TRACE(::testing::Message() << c.n << " images, " << c.in << " channels, side " << c.side);
    const Tensor x = make_input({c.n, c.in, c.side, c.side}, 1, kFloat32);
    const Tensor weight = make_input({c.out, c.in, c.kernel, c.kernel}, 2, kFloat32, -0.3, 0.3);
    for (const bool after : {true, false})
      expect_the_cpus_bits({x, weight, make_input({c.out}, 3, kFloat32)}, [&](const auto& t) {
        const Tensor y = conv2d(t[0], t[1], t[2], {.padding = c.padding});
        return after ? max_pool2d(y, 2).relu() : max_pool2d(y.relu(), 2);
      });
  }
}

TEST_F(Portable, CrossEntropy) {
  for (const auto& [rows, classes] : {std::pair{11, 10}, {900, 7}, {3, 1500}}) {
    SCOPED_TRACE(::testing::Message() << rows << " rows of " << classes);
    const Tensor logits = make_input({rows, classes}, 1, kFloat32, -4.0, 4.0);
    const Tensor target = cast_values(make_input({rows}, 2, kFloat64, 0.0, classes - 0.01), kInt64);
    const Tensor weight = make_input({classes}, 3, kFloat32, 0.5, 1.5);
    for (const double smoothing : {0.0, 0.1})
      for (const bool weighted : {false, true})
        expect_the_cpus_bits({logits, target}, [&](const auto& t) {
          CrossEntropyOptions options{.ignore_index = 1, .label_smoothing = smoothing};
          if (weighted) options.weight = move_values(weight, t[0].device());
          return cross_entropy(t[0], t[1], options);
        });
  }
}

// Otherwise what was to be computed together would be computed alone, with other bits or, as here, an error.
TEST_F(Portable, EventsAndWaitsOfOtherThreadsLeaveWhatIsPendingAsItIs) {
  std::atomic<bool> done{false};
  std::thread other([&] {
    cuda::Event event(kGpu.index);
    const cuda::Stream stream = cuda::Stream::default_of(kGpu.index);
    while (!done) {
      event.record(stream);
      stream.synchronize();
    }
  });
  const std::vector<Tensor> inputs = {make_input({2, 1, 12, 12}, 1, kFloat32), make_input({4, 1, 5, 5}, 2, kFloat32)};
  const auto body = [](const auto& t) { return max_pool2d(conv2d(t[0], t[1]), 2).relu(); };
  std::string said;
  int different = 0;
  try {
    const Values first = run_on(kGpu, inputs, body);
    for (int i = 0; i < 50; ++i) different += run_on(kGpu, inputs, body) != first;
  } catch (const Error& error) {
    said = error.what();
  }
  done = true;
  other.join();
  EXPECT_EQ(said, "");
  EXPECT_EQ(different, 0);
}

TEST_F(Portable, WhatOtherThreadsHavePendingIsNoPartOfACapture) {
  const std::vector<Tensor> inputs = {make_input({2, 1, 12, 12}, 1, kFloat32), make_input({4, 1, 5, 5}, 2, kFloat32)};
  const auto body = [](const Tensor& x, const Tensor& weight) { return max_pool2d(conv2d(x, weight), 2).relu(); };
  const Tensor x = move_values(inputs[0], kGpu), weight = move_values(inputs[1], kGpu);
  const Tensor y = move_values(make_input({8}, 3, kFloat32), kGpu);
  Tensor pending;
  const cuda::Graph graph = cuda::Graph::capture(cuda::Stream::create(kGpu.index), [&] {
    std::thread([&] { pending = body(x, weight); }).join();
    fill_values(y, 1.0);
  });
  EXPECT_EQ(pending.to_vector<float>(), body(inputs[0], inputs[1]).to_vector<float>());
}

struct Outcome {
  std::vector<double> losses;
  Values weights;
};

Outcome train(const char* model, const std::vector<Device>& devices, bool adam) {
  manual_seed(5);
  TrainingStepOptions options{.devices = devices, .logical_shards = 4};
  TrainingStep step([&] { return models::make_model(model); }, options);
  const std::vector<Tensor> parameters = step.module().parameters();
  std::unique_ptr<optim::Optimizer> optimizer;
  if (adam)
    optimizer = std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = 0.01});
  else
    optimizer = std::make_unique<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
  Outcome run;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const std::int64_t size = 5;  // shards of two samples and of one
    const data::Batch batch{make_input({size, 1, 28, 28}, i, kFloat32, 0.0, 1.0),
                            cast_values(make_input({size}, 100 + i, kFloat64, 0.0, 9.99), kInt64), size};
    const Tensor loss = step(
        batch, [](nn::Module& net, const data::Batch& part) { return cross_entropy(net.forward(part.x), part.y); });
    optimizer->step();
    run.losses.push_back(loss.item<double>());
  }
  for (const Tensor& parameter : parameters) run.weights.push_back(parameter.detach().to_vector<float>());
  return run;
}

TEST_F(Portable, LockstepTrainingHasTheCpusBits) {
  for (const char* model : {"lenet", "mlp"})
    for (const bool adam : {false, true}) {
      if (adam && model == std::string("mlp")) continue;  // takes seconds
      SCOPED_TRACE(::testing::Message() << model << (adam ? ", AdamW" : ", SGD"));
      const Outcome there = train(model, {Device()}, adam), here = train(model, {kGpu}, adam);
      EXPECT_EQ(here.losses, there.losses);
      EXPECT_EQ(here.weights, there.weights);
    }
  const Outcome there = train("lenet", {Device()}, false), both = train("lenet", {kGpu, kGpu}, false);
  EXPECT_EQ(both.losses, there.losses);
  EXPECT_EQ(both.weights, there.weights);
}

TEST_F(Portable, ARunMayGoOnOnTheCpu) {
  EXPECT_EQ(lockstep_fingerprint(4, kGpu), lockstep_fingerprint(4, Device()));
  cuda::set_portable(false);
  EXPECT_NE(lockstep_fingerprint(4, kGpu), lockstep_fingerprint(4, Device()));
}

TEST_F(Portable, WhatHasOtherBitsIsRefused) {
  const Tensor x = move_values(make_input({2, 3, 8, 8}, 1, kFloat32), kGpu);
  const Tensor weight = move_values(make_input({4, 3, 3, 3}, 2, kFloat32), kGpu);
  auto refused = [number = 0](const std::function<void()>& body) mutable {
    ++number;
    const std::string said = error_of(body);
    EXPECT_NE(said.find("the CPU's bits"), std::string::npos) << "number " << number << ": " << said;
  };
  refused([&] { x.sum().item<float>(); });
  refused([&] { x.exp().to_vector<float>(); });
  refused([&] { softmax(x, 1).to_vector<float>(); });
  refused([&] { avg_pool2d(x, 2).to_vector<float>(); });
  refused([&] { x.pow(x).to_vector<float>(); });
  refused([&] {
    const Tensor w = copy_contiguous(weight);
    w.set_requires_grad(true);
    conv2d(x, w).backward(ones({2, 4, 6, 6}, {.device = kGpu}));
    w.grad().to_vector<float>();
  });
  refused([&] {  // the CPU transforms the images
    conv2d(move_values(make_input({1, 32, 8, 8}, 1, kFloat32), kGpu),
           move_values(make_input({64, 32, 3, 3}, 2, kFloat32), kGpu))
        .to_vector<float>();
  });
  cuda::set_portable(false);
  EXPECT_EQ(x.sum().item<float>(), x.sum().item<float>());
}

}  // namespace
}  // namespace lockstep::distributed
