#pragma once

// What the tests of divided parameters share: a tower of blocks, its training, and what it costs.

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "lockstep/core/random.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed::testing {

struct Block : nn::Module {
  nn::LayerNorm norm;
  nn::Linear up, down;
  nn::Dropout drop{this, "drop", 0.2};
  Block(nn::Module* parent, std::string_view name, std::int64_t width)
      : Module(parent, name),
        norm(this, "norm", width),
        up(this, "up", width, width),
        down(this, "down", width, width) {}
  explicit Block(std::int64_t width) : Block(nullptr, "", width) {}
  Tensor forward(Tensor x) override { return x + drop(down(relu(up(norm(x))))); }
};

/// Around its blocks there are layers, a parameter without dimensions, and one with fewer elements than ranks.
struct Tower : nn::Module {
  nn::Linear in;
  nn::ModuleList<Block> blocks{this, "blocks"};
  nn::Linear out;
  nn::Parameter scale{this, "scale", full({}, 1.5)};
  nn::Parameter shift{this, "shift", full({kClasses}, 0.1)};
  explicit Tower(std::int64_t width = 7, int depth = 3)
      : in(this, "in", kFeatures, width), out(this, "out", width, kClasses) {
    for (int i = 0; i < depth; ++i) blocks.add(width);
  }
  Tensor forward(Tensor x) override {
    x = in(x);
    for (Block& block : blocks) x = block.forward(x);
    return out(x) * scale + shift;
  }
};

inline void set_tower(nn::Module& module) {
  std::uint32_t seed = 1;
  for (const Tensor& parameter : module.parameters())
    copy_values(make_input(parameter.sizes(), seed++, kFloat32, -0.4, 0.4), parameter);
}

inline Tensor tower_loss(nn::Module& module, const data::Batch& part) {
  return cross_entropy(module.forward(part.x), part.y);
}

/// What is trained, and how.
struct ShardedRun {
  int zero = 0;
  std::int64_t shards = 8;
  std::int64_t accumulate = 1;
  double clip = 0.5;
  std::vector<std::int64_t> batches = {13, 5, 16, 11};
  std::vector<std::string> units = {};
  DType gather = kFloat32;
  int within = 0;
  std::function<std::unique_ptr<nn::Module>()> make = [] { return std::make_unique<Tower>(); };
  LossFunction loss = [](nn::Module& module, const data::Batch& part) { return tower_loss(module, part); };
};

/// Divided as the step's options say.
inline std::unique_ptr<optim::Optimizer> make_adamw(TrainingStep& step) {
  auto adamw = std::make_unique<optim::AdamW>(step.module().parameters(), optim::AdamWOptions{.lr = 0.01});
  return std::make_unique<ZeroRedundancyOptimizer>(std::move(adamw), step);
}

/// The hash of the weights that a run ends with.
inline std::string trained_hash(const ShardedRun& run, const ProcessGroupPtr& group) {
  const std::unique_ptr<nn::Module> module = run.make();
  set_tower(*module);
  TrainingStep step(*module, {.group = group,
                              .logical_shards = run.shards,
                              .accumulate = run.accumulate,
                              .first_bucket_bytes = 300,
                              .bucket_bytes = 900,
                              .zero = run.zero,
                              .shard_units = run.zero == 3 ? run.units : std::vector<std::string>{},
                              .gather_dtype = run.gather,
                              .gather_within = run.within});
  const auto optimizer = make_adamw(step);
  std::uint32_t seed = 1;
  for (const std::int64_t size : run.batches) {
    step(make_batch(size, seed++), run.loss);
    if (run.clip > 0.0) optimizer->clip_grad_norm_(run.clip);
    optimizer->step();
  }
  const WholeParameters whole = step.whole_parameters();
  return nn::state_sha256(*module);
}

}  // namespace lockstep::distributed::testing
