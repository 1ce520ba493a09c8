// Programs of tests/nn in lockstep mode: the same bits on one and on three workers.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"

namespace lockstep {
namespace {

/// The hash of the weights after three steps on so many devices.
template <typename Net, typename Optimizer, typename Loss>
std::string hash_after_steps(int devices, const data::Batch& batch, const Loss& loss) {
  manual_seed(5);
  std::vector<Device> on;
  for (int i = 0; i < devices; ++i) on.push_back({kCPU, i});
  TrainingStep step([] { return std::make_unique<Net>(); }, {.devices = on, .logical_shards = 4});
  Optimizer optimizer(step.module().parameters());
  for (int i = 0; i < 3; ++i) {
    step(batch, loss);
    optimizer.step();
  }
  return nn::weights_sha256(step.module());
}

struct WordModel : nn::Module {
  nn::Embedding encoder{this, "encoder", 11, 6};
  nn::LSTM rnn{this, "rnn", 6, 8, {.num_layers = 2, .batch_first = true, .dropout = 0.2, .bidirectional = true}};
  nn::Linear decoder{this, "decoder", 16, 11};
  Tensor forward(Tensor text) override { return decoder(rnn(encoder(text)).first); }
};

TEST(LockstepPrograms, LstmHasTheSameBitsOnOneAndThreeWorkers) {
  manual_seed(1);
  const Tensor text = randint(0, 11, {8, 6});
  const data::Batch batch{.x = text, .y = text.roll({-1}, {1})};
  const auto loss = [](nn::Module& net, const data::Batch& part) {
    return cross_entropy(net.forward(part.x).flatten(0, 1), part.y.flatten());
  };
  EXPECT_EQ((hash_after_steps<WordModel, optim::RMSprop>(1, batch, loss)),
            (hash_after_steps<WordModel, optim::RMSprop>(3, batch, loss)));
}

struct UNet : nn::Module {
  nn::Conv2d down1{this, "down1", 2, 4, 3, {.padding = 1}}, down2{this, "down2", 4, 8, 3, {.padding = 1}};
  nn::BatchNorm2d norm{this, "norm", 8};
  nn::ConvTranspose2d up{this, "up", 8, 4, 2, {.stride = 2}};
  nn::Conv2d merge{this, "merge", 12, 1, 3, {.padding = 1}};

  Tensor forward(Tensor x) override {
    const Tensor a = elu(down1(x)), b = hardswish(norm(down2(max_pool2d(a, 2))));
    const Tensor wide = interpolate(b, {.scale_factor = 2, .mode = InterpolateMode::bilinear});
    return merge(cat({up(b), wide.slice(1, 0, 4), a}, 1));
  }
};

TEST(LockstepPrograms, UNetHasTheSameBitsOnOneAndThreeWorkers) {
  manual_seed(2);
  const data::Batch batch{.x = randn({8, 2, 8, 8}), .y = (rand({8, 1, 8, 8}) > 0.5).to(kFloat32)};
  const auto loss = [](nn::Module& net, const data::Batch& part) {
    return binary_cross_entropy_with_logits(net.forward(part.x), part.y);
  };
  EXPECT_EQ((hash_after_steps<UNet, optim::Adadelta>(1, batch, loss)),
            (hash_after_steps<UNet, optim::Adadelta>(3, batch, loss)));
}

}  // namespace
}  // namespace lockstep
