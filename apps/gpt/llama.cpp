#include "apps/gpt/llama.h"

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/init.h"

namespace lockstep::gpt {

LlamaAttention::LlamaAttention(nn::Module* parent, std::string_view name, const Config& config)
    : nn::Module(parent, name),
      q_proj(this, "q_proj", config.width, config.heads * config.head_width, false, config.lora),
      k_proj(this, "k_proj", config.width, config.kv_heads * config.head_width, false, config.lora),
      v_proj(this, "v_proj", config.width, config.kv_heads * config.head_width, false, config.lora),
      o_proj(this, "o_proj", config.heads * config.head_width, config.width, false, config.lora),
      head_width_(config.head_width) {}

Tensor LlamaAttention::forward(const Tensor& x, const nn::RotaryAngles& angles, CacheSlot slot) {
  const auto heads = [&](const Tensor& t) {
    return t.view({t.size(0), t.size(1), t.size(2) / head_width_, head_width_}).transpose(1, 2);
  };
  const Tensor query = rotary(heads(q_proj(x)), angles.cosine, angles.sine);
  const Tensor key = rotary(heads(k_proj(x)), angles.cosine, angles.sine);
  return o_proj(attend(query, key, heads(v_proj(x)), slot, 0.0));
}

LlamaMlp::LlamaMlp(nn::Module* parent, std::string_view name, const Config& config)
    : nn::Module(parent, name),
      gate_proj(this, "gate_proj", config.width, config.feedforward, false, config.lora),
      up_proj(this, "up_proj", config.width, config.feedforward, false, config.lora),
      down_proj(this, "down_proj", config.feedforward, config.width, false, config.lora) {}

Tensor LlamaMlp::forward(Tensor x) {
  return down_proj(silu(gate_proj(x)) * up_proj(x));
}

LlamaBlock::LlamaBlock(const Config& config)
    : self_attn(this, "self_attn", config),
      mlp(this, "mlp", config),
      input_layernorm(this, "input_layernorm", config.width, {.eps = config.norm_eps}),
      post_attention_layernorm(this, "post_attention_layernorm", config.width, {.eps = config.norm_eps}) {}

Tensor LlamaBlock::forward(const Tensor& x, const nn::RotaryAngles& angles, CacheSlot slot) {
  const Tensor y = x + self_attn.forward(input_layernorm(x), angles, slot);
  return y + mlp(post_attention_layernorm(y));
}

LlamaStack::LlamaStack(nn::Module* parent, std::string_view name, const Config& config)
    : nn::Module(parent, name),
      embed_tokens(this, "embed_tokens", config.vocabulary, config.width),
      layers(this, "layers"),
      norm(this, "norm", config.width, {.eps = config.norm_eps}) {
  for (std::int64_t i = 0; i < config.layers; ++i) layers.add(config);
}

Llama::Llama(const Config& config)
    : LanguageModel(config),
      model(this, "model", config),
      lm_head_weight(&lm_head, "weight", config.tied ? Tensor() : empty({config.vocabulary, config.width})),
      angles_(nn::rotary_angles(config.context, config.head_width, config.rotary_base)) {
  constexpr double kDeviation = 0.02;
  nn::init::normal_(model.embed_tokens.weight, 0.0, kDeviation);
  if (lm_head_weight.defined()) nn::init::normal_(lm_head_weight, 0.0, kDeviation);
  for (LlamaBlock& block : model.layers)
    for (Projection* layer : {&block.self_attn.q_proj, &block.self_attn.k_proj, &block.self_attn.v_proj,
                              &block.self_attn.o_proj, &block.mlp.gate_proj, &block.mlp.up_proj, &block.mlp.down_proj})
      nn::init::normal_(layer->weight, 0.0, kDeviation);
}

/// Of so many positions, the first of which is `first`.
nn::RotaryAngles Llama::angles_of(std::int64_t length, std::int64_t first, Device device) {
  if (angles_.cosine.device() != device) angles_ = {angles_.cosine.to(device), angles_.sine.to(device)};
  return {angles_.cosine.narrow(0, first, length), angles_.sine.narrow(0, first, length)};
}

std::vector<distributed::PipelineLayer> Llama::layers() {
  std::vector<distributed::PipelineLayer> all{{"embed_tokens", {&model.embed_tokens}, [this](const Tensor& tokens) {
                                                 check_tokens(tokens, nullptr);
                                                 return own_tokens(model.embed_tokens(tokens));
                                               }}};
  for (std::size_t i = 0; i < model.layers.size(); ++i)
    all.push_back({"layers." + std::to_string(i), {&model.layers[i]}, [this, i](const Tensor& x) {
                     return model.layers[i].forward(x, angles_of(length_of(x), 0, x.device()), {});
                   }});
  all.push_back({"norm", {&model.norm, &lm_head}, [this](const Tensor& x) { return model.norm(x); }});
  if (!lm_head_weight.defined()) all.back().modules.push_back(&model.embed_tokens);
  return all;
}

std::vector<distributed::TensorRule> Llama::tensor_plan(std::int64_t shards, DividedTokens tokens) const {
  using enum distributed::TensorSplit;
  const bool everywhere = tokens == DividedTokens::everywhere;
  const std::string layers = "model.layers.*.";
  std::vector<distributed::TensorRule> plan;
  for (const char* name : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"})
    plan.push_back({layers + name, column});
  plan.push_back({layers + "self_attn.o_proj", row});
  for (const char* name : {"mlp.gate_proj", "mlp.up_proj"})
    plan.push_back({layers + name, everywhere ? sequence : column});
  plan.push_back({layers + "mlp.down_proj", everywhere ? sequence : row});
  if (everywhere) {
    plan.push_back({"model.embed_tokens", alike});
    if (lm_head_weight.defined()) plan.push_back({"lm_head", alike});
  } else if (divides_table(shards)) {
    plan.push_back({"model.embed_tokens", vocabulary});
  }
  if (tokens != DividedTokens::none) {
    for (const char* name : {"input_layernorm", "post_attention_layernorm"}) plan.push_back({layers + name, sequence});
    plan.push_back({"model.norm", sequence});
  }
  return plan;
}

Tensor Llama::hidden(const Tensor& tokens, KeyValueCache* cache) {
  check_tokens(tokens, cache);
  const nn::RotaryAngles angles = angles_of(tokens.size(1), cache ? cache->length() : 0, tokens.device());
  Tensor x = own_tokens(model.embed_tokens(tokens));
  for (std::int64_t i = 0; i < config_.layers; ++i) {
    LlamaBlock& block = model.layers[static_cast<std::size_t>(i)];
    if (config_.recompute && !cache)
      x = nn::recompute(block, x, [&block, angles](const Tensor& input) { return block.forward(input, angles, {}); });
    else
      x = block.forward(x, angles, {cache, i});
  }
  return model.norm(x);
}

Tensor Llama::output_weight() {
  return lm_head_weight.defined() ? lm_head_weight : model.embed_tokens.weight;
}

}  // namespace lockstep::gpt
