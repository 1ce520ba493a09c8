#pragma once

// What the tests of layers divided over ranks share: a small language model with every kind of such a layer.

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/random.h"
#include "lockstep/distributed/tensor_parallel/tensor_parallel.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/parallel/training_support.h"

namespace lockstep::distributed::testing {

constexpr std::int64_t kVocabulary = 24, kWidth = 16, kHeads = 4, kLength = 8, kTensorSteps = 20;

/// What a Transformer has of what need not be a multiple of the shards.
struct Sizes {
  std::int64_t vocabulary = kVocabulary, inner = 32;
};
constexpr Sizes kUneven{.vocabulary = 13, .inner = 29};

/// A small language model: every kind of layer that can be divided, with dropout in and between them.
struct Transformer : nn::Module {
  explicit Transformer(double dropout = 0.0, const Sizes& sizes = {})
      : table(this, "table", sizes.vocabulary, kWidth),
        attention(this, "attention", kWidth, kHeads, {.dropout = dropout, .is_causal = true}),
        up(this, "up", kWidth, sizes.inner),
        down(this, "down", sizes.inner, kWidth),
        inner_drop(this, "inner_drop", dropout),
        drop(this, "drop", dropout),
        block_drop(this, "block_drop", dropout) {}
  nn::Embedding table;
  nn::LayerNorm norm1{this, "norm1", kWidth};
  nn::MultiheadAttention attention;
  nn::LayerNorm norm2{this, "norm2", kWidth};
  nn::Linear up, down;
  nn::Dropout inner_drop, drop, block_drop;

  Tensor hidden(const Tensor& tokens) { return blocks(drop(table(tokens))).reshape({-1, kWidth}); }
  Tensor blocks(Tensor x) {
    x = x + block_drop(attention(norm1(x)));
    return x + block_drop(down(inner_drop(gelu(up(norm2(x))))));
  }
};

inline const std::vector<TensorRule> kPlan{{"table", TensorSplit::vocabulary},
                                           {"attention", TensorSplit::heads},
                                           {"up", TensorSplit::column},
                                           {"inner_drop", TensorSplit::column},
                                           {"down", TensorSplit::row}};

/// The same where tokens are divided between these layers.
inline std::vector<TensorRule> plan_by_tokens() {
  std::vector<TensorRule> plan = kPlan;
  for (const char* layer : {"norm1", "norm2", "block_drop"}) plan.push_back({layer, TensorSplit::sequence});
  return plan;
}

/// Which ranks' tokens a rank computes.
enum class Tokens : std::uint8_t {
  all,
  own_between_layers,  ///< sequence parallelism
  own,                 ///< context parallelism: weights are whole
  own_or_columns,      ///< the same with columns of all tokens between `up` and `down`
};

/// The plan for these. Attention alone exchanges tokens where weights are whole.
inline std::vector<TensorRule> plan_of(Tokens tokens) {
  if (tokens == Tokens::all) return kPlan;
  if (tokens == Tokens::own_between_layers) return plan_by_tokens();
  std::vector<TensorRule> plan = plan_by_tokens();
  plan.front() = {"table", TensorSplit::alike};
  plan.push_back({"drop", TensorSplit::alike});
  if (tokens == Tokens::own)
    for (TensorRule& rule : plan)
      if (rule.split == TensorSplit::column || rule.split == TensorSplit::row) rule.split = TensorSplit::sequence;
  return plan;
}

inline TensorParallelOptions options_of(Tokens tokens, const ProcessGroupPtr& group, std::int64_t shards) {
  return {.group = group,
          .logical_shards = shards,
          .sequence_parallel = tokens == Tokens::own_between_layers,
          .context_parallel = tokens == Tokens::own || tokens == Tokens::own_or_columns};
}

/// The loss of a Transformer divided by one of these plans.
inline Tensor loss_of(const TensorParallel& parallel, Transformer& model, const data::Batch& batch) {
  const Tensor hidden = model.blocks(parallel.own_tokens(model.drop(model.table(batch.x))));
  return parallel.cross_entropy(parallel.divides_tokens() ? hidden : hidden.reshape({-1, kWidth}), model.table.weight,
                                batch.y.reshape({-1}));
}

inline data::Batch tokens_of(std::int64_t n, std::uint32_t seed, std::int64_t vocabulary = kVocabulary) {
  std::vector<std::int64_t> x, y;
  for (std::int64_t i = 0; i < n * kLength; ++i) {
    x.push_back((i * i * 5 + i * seed + 3) % vocabulary);
    y.push_back((i * 7 + seed * i * i) % vocabulary);
  }
  return {tensor(x).view({n, kLength}), tensor(y).view({n, kLength})};
}

/// Steps of the lockstep rows: 20, or as many as LOCKSTEP_TEST_STEPS says.
inline std::int64_t lockstep_steps() {
  const char* const text = std::getenv("LOCKSTEP_TEST_STEPS");
  return text && *text ? std::atoll(text) : kTensorSteps;
}

inline Values values_of(const std::vector<nn::NamedTensor>& state) {
  Values values;
  for (const nn::NamedTensor& each : state) values.push_back(each.tensor.to_vector<double>());
  return values;
}

inline std::unique_ptr<optim::Optimizer> make_optimizer(bool adam, std::vector<Tensor> parameters) {
  if (adam)
    return std::make_unique<optim::AdamW>(std::move(parameters),
                                          optim::AdamWOptions{.lr = 0.003, .weight_decay = 0.01});
  return std::make_unique<optim::SGD>(std::move(parameters),
                                      optim::SGDOptions{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01});
}

/// An ordinary loop that knows nothing of ranks; with `clip`, gradients are clipped to that norm.
inline Values train_alone(bool adam, double clip, DType dtype, double dropout = 0.0, const Sizes& sizes = {}) {
  Transformer model(dropout, sizes);
  set_weights(model);
  model.to(dtype);
  const auto optimizer = make_optimizer(adam, model.parameters());
  for (std::int64_t i = 0; i < kTensorSteps; ++i) {
    const RandomKeyGuard key(static_cast<std::uint64_t>(i), 0);
    const data::Batch batch = tokens_of(7 - i % 2, static_cast<std::uint32_t>(i + 1), sizes.vocabulary);
    model.zero_grad(/*set_to_none=*/true);
    cross_entropy(linear(model.hidden(batch.x), model.table.weight), batch.y.reshape({-1})).backward();
    if (clip > 0.0) optim::clip_grad_norm_(model.parameters(), clip);
    optimizer->step();
  }
  return values_of(model.state());
}

inline void run_in(int world_size, const std::function<void(const ProcessGroupPtr&)>& body) {
  lockstep::testing::run_ranks(world_size, Link::in_process,
                               [&](ProcessGroup& group) { body(group.shared_from_this()); });
}

}  // namespace lockstep::distributed::testing
