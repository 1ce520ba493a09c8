#include "apps/gpt/language_model.h"

#include <optional>

#include "apps/gpt/gpt2.h"
#include "apps/gpt/llama.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/distributed/tensor_parallel/tensor_shards.h"
#include "lockstep/nn/container.h"

namespace lockstep::gpt {
namespace {

/// The output projection and its loss, as a module whose parameter is the model's weight, unless that is frozen.
struct LossHead : nn::Module {
  explicit LossHead(const Tensor& weight) : weight(weight) {
    if (weight.requires_grad()) parameter.emplace(this, "weight", weight);
  }
  Tensor weight;
  std::optional<nn::Parameter> parameter;
};

}  // namespace

std::unique_ptr<LanguageModel> LanguageModel::make(const Config& config) {
  check_config(config);
  if (config.family == Family::llama) return std::make_unique<Llama>(config);
  return std::make_unique<Gpt2>(config);
}

void LanguageModel::check_tokens(const Tensor& tokens, KeyValueCache* cache) const {
  LOCKSTEP_CHECK(tokens.defined() && tokens.dim() == 2 && tokens.size(1) > 0,
                 "[gpt] expected tokens [N, T] with T above 0, found {}",
                 tokens.defined() ? to_string(tokens.sizes()) : "an undefined tensor");
  const std::int64_t before = cache ? cache->length() : 0;
  LOCKSTEP_CHECK(before + tokens.size(1) <= config_.context,
                 "[gpt] {} tokens after {} others are more than the context of {}", tokens.size(1), before,
                 config_.context);
}

void LanguageModel::set_divided(const distributed::TensorParallel& divided) {
  divided_ = &divided;
  divides_table_ = !divided.context_parallel() && divides_table(divided.shards().count());
}

std::int64_t LanguageModel::length_of(const Tensor& x) const {
  return x.size(1) * (divided_ && divided_->divides_tokens() ? divided_->shards().group().world_size() : 1);
}

Tensor LanguageModel::forward(Tensor tokens) {
  const Tensor x = hidden(tokens, nullptr);
  if (divides_table_) return divided_->logits(x, output_weight());
  return linear(divided_ ? divided_->all_tokens(x) : x, output_weight());
}

Tensor LanguageModel::next_logits(const Tensor& tokens, KeyValueCache* cache) {
  const Tensor x = hidden(tokens, cache);
  if (cache) cache->advance(tokens.size(1));
  return linear(x.select(1, -1), output_weight());
}

Tensor LanguageModel::loss(const Tensor& tokens, const Tensor& targets) {
  LOCKSTEP_CHECK(targets.defined() && targets.sizes() == tokens.sizes(), "[gpt] expected targets of the tokens' shape");
  return loss_of(hidden(tokens, nullptr), targets);
}

Tensor LanguageModel::loss_of(const Tensor& x, const Tensor& targets) {
  const std::int64_t rows = targets.numel();
  LOCKSTEP_CHECK(x.dim() == 3 && x.size(0) * length_of(x) == rows, "[gpt] expected targets of the tokens' shape");
  const Tensor labels = targets.reshape({rows});
  const bool by_tokens = divided_ && divided_->divides_tokens();
  if (divides_table_ || (divided_ && divided_->context_parallel()))
    return divided_->cross_entropy(by_tokens ? x : x.reshape({rows, config_.width}), output_weight(), labels);
  const Tensor flat = (by_tokens ? divided_->all_tokens(x) : x).reshape({rows, config_.width});
  if (rows * config_.vocabulary <= config_.logits_at_once) return cross_entropy(linear(flat, output_weight()), labels);

  const auto head = std::make_shared<LossHead>(output_weight());
  const std::int64_t piece = std::max<std::int64_t>(1, config_.logits_at_once / 4 / config_.vocabulary);
  Tensor sum;
  for (std::int64_t first = 0; first < rows; first += piece) {
    const std::int64_t count = std::min(piece, rows - first);
    const Tensor part = nn::recompute(
        *head, flat.narrow(0, first, count), [head, target = labels.narrow(0, first, count)](const Tensor& input) {
          return cross_entropy(linear(input, head->weight), target, {.reduction = Reduction::sum});
        });
    sum = sum.defined() ? sum + part : part;
  }
  return sum / static_cast<double>(rows);
}

}  // namespace lockstep::gpt
