#include "apps/gpt/gpt2.h"

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/tensor_parallel/tensor_shards.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/init.h"

namespace lockstep::gpt {

Gpt2Attention::Gpt2Attention(nn::Module* parent, std::string_view name, const Config& config)
    : nn::Module(parent, name),
      c_attn(this, "c_attn", config.width, 3 * config.width, true, config.lora),
      c_proj(this, "c_proj", config.width, config.width, true, config.lora),
      dropout(this, "resid_dropout", config.dropout),
      heads_(config.heads),
      head_width_(config.width / config.heads),
      attention_dropout_(config.dropout) {}

Tensor Gpt2Attention::forward(const Tensor& x, CacheSlot slot) {
  const Tensor qkv = c_attn(x);
  const double p = is_training() ? attention_dropout_ : 0.0;
  const std::int64_t heads_here = qkv.size(2) / (3 * head_width_);  // fewer than the model has where it is divided
  if (!slot.cache)
    return dropout(c_proj(
        packed_attention(qkv, heads_here, heads_here,
                         {.dropout_p = p, .is_causal = true, .first_head = rank_ * heads_here, .all_heads = heads_})));
  const std::int64_t width = x.size(2);
  const auto parts = qkv.split(width, 2);
  const auto heads = [&](const Tensor& t) {
    return t.view({x.size(0), x.size(1), heads_here, head_width_}).transpose(1, 2);
  };
  return c_proj(attend(heads(parts[0]), heads(parts[1]), heads(parts[2]), slot, 0.0));
}

Gpt2Mlp::Gpt2Mlp(nn::Module* parent, std::string_view name, const Config& config)
    : nn::Module(parent, name),
      c_fc(this, "c_fc", config.width, config.feedforward, true, config.lora),
      c_proj(this, "c_proj", config.feedforward, config.width, true, config.lora),
      dropout(this, "dropout", config.dropout) {}

Tensor Gpt2Mlp::forward(Tensor x) {
  return dropout(c_proj(gelu(c_fc(x), GeluMode::tanh)));
}

Gpt2Block::Gpt2Block(const Config& config)
    : ln_1(this, "ln_1", config.width, {.eps = config.norm_eps}),
      attn(this, "attn", config),
      ln_2(this, "ln_2", config.width, {.eps = config.norm_eps}),
      mlp(this, "mlp", config) {}

Tensor Gpt2Block::forward(const Tensor& x, CacheSlot slot) {
  const Tensor y = x + attn.forward(ln_1(x), slot);
  return y + mlp(ln_2(y));
}

Gpt2::Gpt2(const Config& config)
    : LanguageModel(config),
      wte(this, "wte", config.vocabulary, config.width),
      wpe(this, "wpe", config.context, config.width),
      dropout(this, "drop", config.dropout),
      h(this, "h"),
      ln_f(this, "ln_f", config.width, {.eps = config.norm_eps}),
      lm_head_weight(&lm_head, "weight", config.tied ? Tensor() : empty({config.vocabulary, config.width})) {
  constexpr double kDeviation = 0.02;
  nn::init::normal_(wte.weight, 0.0, kDeviation);
  nn::init::normal_(wpe.weight, 0.0, kDeviation);
  if (lm_head_weight.defined()) nn::init::normal_(lm_head_weight, 0.0, kDeviation);
  const double residual = kDeviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  for (std::int64_t i = 0; i < config.layers; ++i) {
    Gpt2Block& block = h.add(config);
    for (Projection* layer : {&block.attn.c_attn, &block.attn.c_proj, &block.mlp.c_fc, &block.mlp.c_proj}) {
      const bool adds = layer == &block.attn.c_proj || layer == &block.mlp.c_proj;
      nn::init::normal_(layer->weight, 0.0, adds ? residual : kDeviation);
      nn::init::zeros_(layer->bias);
    }
  }
}

Tensor Gpt2::embed(const Tensor& tokens, std::int64_t first) {
  return dropout(wte(tokens) + wpe.weight.narrow(0, first, tokens.size(1)));
}

std::vector<distributed::PipelineLayer> Gpt2::layers() {
  std::vector<distributed::PipelineLayer> all{{"embeddings", {&wte, &wpe, &dropout}, [this](const Tensor& tokens) {
                                                 check_tokens(tokens, nullptr);
                                                 return own_tokens(embed(tokens, 0));
                                               }}};
  for (std::size_t i = 0; i < h.size(); ++i)
    all.push_back(
        {"h." + std::to_string(i), {&h[i]}, [block = &h[i]](const Tensor& x) { return block->forward(x, {}); }});
  all.push_back({"ln_f", {&ln_f, &lm_head}, [this](const Tensor& x) { return ln_f(x); }});
  if (!lm_head_weight.defined()) all.back().modules.push_back(&wte);
  return all;
}

std::vector<distributed::TensorRule> Gpt2::tensor_plan(std::int64_t shards, DividedTokens tokens) const {
  using enum distributed::TensorSplit;
  const bool everywhere = tokens == DividedTokens::everywhere;
  std::vector<distributed::TensorRule> plan{{"h.*.attn.c_attn", column, 3},
                                            {"h.*.attn.c_proj", row},
                                            {"h.*.mlp.c_fc", everywhere ? sequence : column},
                                            {"h.*.mlp.c_proj", everywhere ? sequence : row}};
  if (everywhere) {
    plan.insert(plan.end(), {{"wte", alike}, {"wpe", alike}, {"drop", alike}});
    if (lm_head_weight.defined()) plan.push_back({"lm_head", alike});
  } else if (divides_table(shards)) {
    plan.push_back({"wte", vocabulary});
  }
  if (tokens != DividedTokens::none)
    for (const char* layer : {"h.*.ln_1", "h.*.attn.resid_dropout", "h.*.ln_2", "h.*.mlp.dropout", "ln_f"})
      plan.push_back({layer, sequence});
  return plan;
}

void Gpt2::set_divided(const distributed::TensorParallel& divided) {
  LanguageModel::set_divided(divided);
  for (Gpt2Block& block : h) block.attn.set_rank(divided.shards().group().rank());
}

Tensor Gpt2::hidden(const Tensor& tokens, KeyValueCache* cache) {
  check_tokens(tokens, cache);
  const std::int64_t first = cache ? cache->length() : 0;
  Tensor x = own_tokens(embed(tokens, first));
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    Gpt2Block& block = h[static_cast<std::size_t>(i)];
    const CacheSlot slot{cache, i};
    if (config_.recompute && !cache)
      x = nn::recompute(block, x, [&block](const Tensor& input) { return block.forward(input, {}); });
    else
      x = block.forward(x, slot);
  }
  return ln_f(x);
}

Tensor Gpt2::output_weight() {
  return lm_head_weight.defined() ? lm_head_weight : wte.weight;
}

}  // namespace lockstep::gpt
