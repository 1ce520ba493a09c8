#pragma once

// What the tests of pipelines share: a language model whose table is tied at both ends, as a chain of layers, and whole
// trainings of it on a mesh.

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/autograd/autocast.h"
#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/parallel/step.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"
#include "lockstep/nn/optim/grad_scaler.h"
#include "tests/distributed/parallel/tensor_support.h"

namespace lockstep::distributed::testing {

/// A part of a transformer that adds to what it reads.
struct Block : nn::Module {
  explicit Block(double dropout)
      : attention(this, "attention", kWidth, kHeads, {.dropout = dropout, .is_causal = true}),
        inner_drop(this, "inner_drop", dropout),
        drop(this, "drop", dropout) {}
  nn::LayerNorm norm1{this, "norm1", kWidth};
  nn::MultiheadAttention attention;
  nn::LayerNorm norm2{this, "norm2", kWidth};
  nn::Linear up{this, "up", kWidth, 24};
  nn::Linear down{this, "down", 24, kWidth};
  nn::Dropout inner_drop, drop;

  Tensor forward(Tensor x) override {
    x = x + drop(attention(norm1(x)));
    return x + drop(down(inner_drop(gelu(up(norm2(x))))));
  }
};

/// Table, blocks, a norm; the table is the output projection's weight too.
struct Chain : nn::Module {
  explicit Chain(double dropout = 0.0, int blocks_ = 4) : drop(this, "drop", dropout) {
    for (int i = 0; i < blocks_; ++i) blocks.add(dropout);
  }
  nn::Embedding table{this, "table", kVocabulary, kWidth};
  nn::Dropout drop;
  nn::ModuleList<Block> blocks{this, "blocks"};
  nn::LayerNorm norm{this, "norm", kWidth};

  Tensor forward(Tensor x) override {
    x = drop(table(x));
    for (Block& block : blocks) x = block(x);
    return norm(x).reshape({-1, kWidth});
  }
  std::vector<PipelineLayer> layers() {
    std::vector<PipelineLayer> all{{"table", {&table, &drop}, [this](const Tensor& x) { return drop(table(x)); }}};
    for (std::size_t i = 0; i < blocks.size(); ++i) all.push_back({"blocks." + std::to_string(i), {&blocks[i]}});
    all.push_back({"norm", {&norm, &table}, [this](const Tensor& x) { return norm(x).reshape({-1, kWidth}); }});
    return all;
  }
};

inline const std::vector<TensorRule> kChainPlan{{"table", TensorSplit::vocabulary},
                                                {"blocks.*.attention", TensorSplit::heads},
                                                {"blocks.*.up", TensorSplit::column},
                                                {"blocks.*.inner_drop", TensorSplit::column},
                                                {"blocks.*.down", TensorSplit::row}};

struct Training {
  std::int64_t shards = 0;         ///< V; 0: not in lockstep mode
  std::int64_t tensor_shards = 0;  ///< T; 0: layers are not divided
  bool adam = true;
  double clip = 0.0;
  double dropout = 0.0;
  DType dtype = kFloat32;
  std::int64_t accumulate = 1;
  PipelineSchedule schedule = PipelineSchedule::one_forward_one_backward;
  int chunks = 1;
  bool recompute = false;
  DType amp = kFloat32;  ///< mixed precision; kFloat16 with a scaled loss
  int zero = 0;          ///< what is divided over `data`
  bool sums = false;     ///< losses that are sums with counts of their own
  std::int64_t steps = kTensorSteps;
  std::int64_t samples = 9;  ///< of a batch; every other has one less
};

struct Trained {
  Values weights;
  std::vector<double> losses;
  std::int64_t left_out = 0;  ///< steps whose gradients were not finite
};

/// A sum over samples, each with another weight, so that the divisor is no number of samples.
inline LossValue weighted_sum(const Tensor& logits, const data::Batch& part) {
  std::vector<float> weights;
  double count = 0.0;
  for (const std::int64_t token : part.y.select(1, 0).to_vector<std::int64_t>()) {
    weights.push_back(0.5F + static_cast<float>(token % 3));
    count += weights.back();
  }
  const Tensor losses = cross_entropy(logits, part.y.reshape({-1}), {.reduction = Reduction::none});
  return LossValue::sum((losses.reshape({-1, kLength}).mean({1}) * tensor(weights)).sum(), count);
}

/// The weights after a training, and the loss of each step, on a mesh; with `plain` by a TrainingStep that knows of no
/// pipeline.
inline Trained train_on_mesh(const Training& training, const ProcessGroupPtr& world, const MeshSizes& sizes = {},
                             bool plain = false) {
  const Mesh mesh(world, sizes);
  Chain model(training.dropout);
  set_weights(model);
  model.to(training.dtype);
  std::optional<TensorParallel> divided;
  if (training.tensor_shards > 0 || sizes.tensor > 1)
    divided.emplace(model, kChainPlan,
                    TensorParallelOptions{.group = mesh.tensor(), .logical_shards = training.tensor_shards});
  std::optional<PipelineParallel> pipeline;
  if (!plain)
    pipeline.emplace(model, model.layers(),
                     PipelineParallelOptions{.group = mesh.pipeline(),
                                             .schedule = training.schedule,
                                             .chunks = training.chunks,
                                             .recompute = training.recompute,
                                             .autocast = training.amp});
  TrainingStep step(model, {.group = mesh.data(),
                            .logical_shards = training.shards,
                            .accumulate = training.accumulate,
                            .model_part = plain ? nullptr : pipeline->part(),
                            .first_bucket_bytes = 512,
                            .bucket_bytes = 4096,
                            .zero = training.zero >= 2 ? training.zero : 0});
  std::unique_ptr<optim::Optimizer> optimizer =
      make_optimizer(training.adam, plain ? model.parameters() : pipeline->parameters());
  optimizer->set_agreement([&](bool finite) { return mesh.all(finite); });
  ZeroRedundancyOptimizer* sharded = nullptr;
  if (training.zero > 0) {
    auto made = training.zero == 1 ? std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), mesh.data())
                                   : std::make_unique<ZeroRedundancyOptimizer>(std::move(optimizer), step);
    sharded = made.get();
    optimizer = std::move(made);
  }
  // In lockstep mode a scale at which the first steps overflow; else slices of other sizes may overflow at another one.
  optim::GradScaler scaler(
      {.init_scale = training.amp != kFloat16 ? 1.0 : std::ldexp(1.0, training.shards > 0 ? 22 : 10)});
  Trained trained;
  for (std::int64_t i = 0; i < training.steps; ++i) {
    const data::Batch batch = tokens_of(training.samples - i % 2, static_cast<std::uint32_t>(i + 1));
    const Tensor loss = step(batch, [&](nn::Module& net, const data::Batch& part) {
      const AutocastGuard autocast(training.amp, kCPU);
      const Tensor x = net.forward(part.x), y = part.y.reshape({-1});
      if (divided) return LossValue(scaler.scale(divided->cross_entropy(x, model.table.weight, y)));
      const Tensor logits = linear(x, model.table.weight);
      return training.sums ? weighted_sum(logits, part) : LossValue(scaler.scale(cross_entropy(logits, y)));
    });
    trained.losses.push_back(loss.item<double>() / scaler.scale_factor());
    const bool finite = scaler.unscale(*optimizer);
    if (!finite) ++trained.left_out;
    if (training.clip > 0.0 && finite) {
      const double norm = !plain    ? pipeline->clip_grad_norm(training.clip, divided ? &*divided : nullptr, sharded)
                          : divided ? divided->clip_grad_norm(training.clip)
                                    : double(optim::clip_grad_norm_(model.parameters(), training.clip));
      EXPECT_GT(norm, training.clip) << "the row must clip";
    }
    scaler.step(*optimizer);
    scaler.update();
  }
  const WholeParameters whole = step.whole_parameters();
  trained.weights = values_of(!plain    ? pipeline->full_state(divided ? &*divided : nullptr)
                              : divided ? divided->full_state()
                                        : model.state());
  return trained;
}

inline double difference_of(const Trained& a, const Trained& b) {
  return std::max(largest_difference(a.weights, b.weights), largest_difference({a.losses}, {b.losses}));
}

}  // namespace lockstep::distributed::testing
