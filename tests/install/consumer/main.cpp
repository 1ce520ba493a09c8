// A user's program: lenet, defined and trained in one translation unit, alone or under a launcher.
#include <lockstep/lockstep.h>

#include <cmath>
#include <cstdio>
#include <memory>

#include "core/tensor.h"
#include "data/data.h"
#include "distributed/job.h"
#include "nn/module.h"
#include "train/run.h"

// The five above are this project's, and not lockstep's of the same names.
static_assert(own::Tensor{}.part + own::Data{}.part + own::Module{}.part + own::Job{}.part + own::Run{}.part == 31);

namespace ls = lockstep;

struct LeNet : ls::nn::Module {
  ls::nn::Conv2d conv1{this, "conv1", 1, 10, 5};
  ls::nn::Conv2d conv2{this, "conv2", 10, 20, 5};
  ls::nn::Linear fc1{this, "fc1", 320, 50}, fc2{this, "fc2", 50, 10};

  ls::Tensor forward(ls::Tensor x) override {
    x = relu(max_pool2d(conv1(x), 2));
    x = relu(max_pool2d(conv2(x), 2));
    return fc2(relu(fc1(x.flatten(1))));
  }
};

// Class k is noise around the k-th column of pixels.
std::shared_ptr<ls::data::Dataset> stripes(std::int64_t count) {
  ls::Tensor x = ls::rand({count, 1, 28, 28});
  ls::Tensor y = ls::empty({count}, {.dtype = ls::kInt64});
  for (std::int64_t i = 0; i < count; ++i) {
    y.data<std::int64_t>()[i] = i % 10;
    for (std::int64_t row = 0; row < 28; ++row) x.data<float>()[(i * 28 + row) * 28 + 4 + 2 * (i % 10)] += 3.0f;
  }
  return std::make_shared<ls::data::TensorDataset>(x, y);
}

int main() {
  ls::manual_seed(1);
  auto job = ls::distributed::init();
  LeNet model;
  ls::distributed::DistributedDataParallel ddp(model, job);
  ls::optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  ls::data::DataLoader loader(stripes(640), {.batch_size = 64, .seed = 1});

  double first = 0, last = 0;
  for (int epoch = 0; epoch < 4; ++epoch)
    for (auto& batch : loader.epoch(epoch)) {
      last = ddp.step(batch, [&](auto& part) { return cross_entropy(model(part.x), part.y); }).item<double>();
      if (first == 0) first = last;
      optimizer.step();
    }
  if (job.is_rank0()) std::printf("loss %.4f -> %.4f on %d\n", first, last, job.world_size());
  return std::isfinite(last) && last < first / 2 ? 0 : 1;
}
