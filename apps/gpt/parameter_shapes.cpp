#include "apps/gpt/parameter_shapes.h"

#include <utility>

#include "lockstep/core/check.h"

namespace lockstep::gpt {
namespace {

class List {
 public:
  explicit List(const Config& config) : config_(config) {}

  void add(std::string name, Shape shape) { shapes_.push_back({std::move(name), shape}); }
  void norm(const std::string& name, bool bias) {
    add(name + ".weight", {config_.width});
    if (bias) add(name + ".bias", {config_.width});
  }
  /// A Projection.
  void projection(const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
    if (config_.lora.rank == 0) return;
    add(name + ".lora_A.weight", {config_.lora.rank, in});
    add(name + ".lora_B.weight", {out, config_.lora.rank});
  }
  void head() {
    if (!config_.tied) add("lm_head.weight", {config_.vocabulary, config_.width});
  }
  std::vector<NamedShape> take() { return std::move(shapes_); }

 private:
  const Config& config_;
  std::vector<NamedShape> shapes_;
};

std::vector<NamedShape> of_gpt2(const Config& config) {
  List list(config);
  const std::int64_t width = config.width, inner = config.feedforward;
  list.add("wte.weight", {config.vocabulary, width});
  list.add("wpe.weight", {config.context, width});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string block = fmt::format("h.{}.", i);
    list.norm(block + "ln_1", true);
    list.projection(block + "attn.c_attn", width, 3 * width, true);
    list.projection(block + "attn.c_proj", width, width, true);
    list.norm(block + "ln_2", true);
    list.projection(block + "mlp.c_fc", width, inner, true);
    list.projection(block + "mlp.c_proj", inner, width, true);
  }
  list.norm("ln_f", true);
  list.head();
  return list.take();
}

std::vector<NamedShape> of_llama(const Config& config) {
  List list(config);
  const std::int64_t width = config.width, inner = config.feedforward;
  const std::int64_t queries = config.heads * config.head_width, keys = config.kv_heads * config.head_width;
  list.add("model.embed_tokens.weight", {config.vocabulary, width});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const std::string block = fmt::format("model.layers.{}.", i);
    list.projection(block + "self_attn.q_proj", width, queries, false);
    list.projection(block + "self_attn.k_proj", width, keys, false);
    list.projection(block + "self_attn.v_proj", width, keys, false);
    list.projection(block + "self_attn.o_proj", queries, width, false);
    list.projection(block + "mlp.gate_proj", width, inner, false);
    list.projection(block + "mlp.up_proj", width, inner, false);
    list.projection(block + "mlp.down_proj", inner, width, false);
    list.norm(block + "input_layernorm", false);
    list.norm(block + "post_attention_layernorm", false);
  }
  list.norm("model.norm", false);
  list.head();
  return list.take();
}

}  // namespace

std::vector<NamedShape> parameter_shapes(const Config& config) {
  return config.family == Family::llama ? of_llama(config) : of_gpt2(config);
}

}  // namespace lockstep::gpt
