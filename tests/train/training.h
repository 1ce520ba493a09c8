#pragma once

// A small training in this process.

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "lockstep/train/run.h"

namespace lockstep::training {

inline constexpr std::int64_t kStepsAnEpoch = 4;

struct Net : nn::Module {
  nn::Linear fc1{this, "fc1", 6, 8};
  nn::Dropout dropout{this, "dropout", 0.5};
  nn::Linear fc2{this, "fc2", 8, 3};
  Tensor forward(Tensor x) override { return fc2(dropout(relu(fc1(x)))); }
};

/// 30 samples: batches of 8, and a short one.
inline std::shared_ptr<const data::Dataset> samples() {
  const RandomKeyGuard key(0, 0);
  const Tensor x = randn({30, 6});
  return std::make_shared<data::TensorDataset>(x, x.slice(1, 0, 3).argmax(1));
}

/// All that a run takes, made anew each time as by a new process.
struct Training {
  explicit Training(RunOptions options) {
    options.progress = Progress::none;
    manual_seed(3);
    step.emplace([] { return std::make_unique<Net>(); });
    optimizer.emplace(step->module().parameters(), optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
    loader.emplace(samples(), data::DataLoaderOptions{.batch_size = 8, .seed = 3});
    const auto loss = [](nn::Module& net, const data::Batch& part) {
      return cross_entropy(net.forward(part.x), part.y);
    };
    run.emplace(*step, *optimizer, *loader, loss, std::move(options));
    run->set_schedule([](std::int64_t n) { return 0.1 / static_cast<double>(n + 1); });
  }

  std::optional<distributed::TrainingStep> step;
  std::optional<optim::SGD> optimizer;
  std::optional<data::DataLoader> loader;
  std::optional<Run> run;
};

}  // namespace lockstep::training
