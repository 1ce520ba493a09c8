#include "apps/gpt/config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/gpt/files.h"
#include "apps/gpt/json_object.h"
#include "lockstep/core/check.h"

namespace lockstep::gpt {
namespace {

struct Preset {
  const char* name;
  std::int64_t layers, heads, width, context;
};
constexpr Preset kPresets[] = {{"nano", 4, 4, 128, 64}, {"small", 6, 6, 384, 256}, {"gpt2", 12, 12, 768, 1024}};

/// What the angles of rotary positions may take: a number for each position and each element of a head.
constexpr std::int64_t kMostAngles = std::int64_t{1} << 28;

Config gpt2_of(const JsonObject& entries) {
  Config config;
  config.family = Family::gpt2;
  config.vocabulary = entries.size("vocab_size");
  config.context = entries.size("n_positions");
  config.layers = entries.size("n_layer");
  config.heads = entries.size("n_head");
  config.width = entries.size("n_embd");
  config.feedforward = entries.size("n_inner", 4 * config.width);
  config.norm_eps = entries.number("layer_norm_epsilon", 1e-5);
  config.tied = entries.flag("tie_word_embeddings", true);
  config.dropout = entries.number("resid_pdrop", 0.0);
  entries.require("activation_function", "gelu_new");
  entries.require("scale_attn_weights", true);
  entries.require("scale_attn_by_inverse_layer_idx", false);
  return config;
}

Config llama_of(const JsonObject& entries) {
  Config config;
  config.family = Family::llama;
  config.vocabulary = entries.size("vocab_size");
  config.context = entries.size("max_position_embeddings");
  config.layers = entries.size("num_hidden_layers");
  config.heads = entries.size("num_attention_heads");
  config.kv_heads = entries.size("num_key_value_heads", config.heads);
  config.width = entries.size("hidden_size");
  config.head_width = entries.size("head_dim", std::max<std::int64_t>(1, config.width / config.heads));
  config.feedforward = entries.size("intermediate_size");
  config.norm_eps = entries.number("rms_norm_eps", 1e-6);
  config.tied = entries.flag("tie_word_embeddings", false);
  config.rotary_base = entries.number("rope_theta", 10000.0);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!entries.has(key)) continue;
    const JsonObject rope = entries.object(key);
    const std::string kind = rope.text("rope_type", rope.text("type", "default"));
    LOCKSTEP_CHECK(kind == "default", "{} of type {}; only \"default\" is computed here", rope.where(), kind);
    config.rotary_base = rope.number("rope_theta", config.rotary_base);
  }
  entries.require("hidden_act", "silu");
  entries.require("attention_bias", false);
  entries.require("mlp_bias", false);
  LOCKSTEP_CHECK(config.context <= kMostAngles / config.head_width,
                 "{}: \"max_position_embeddings\" is {}; expected at most {} with heads of {}", entries.where(),
                 config.context, kMostAngles / config.head_width, config.head_width);
  return config;
}

}  // namespace

const std::vector<std::string>& preset_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Preset& p : kPresets) list.emplace_back(p.name);
    return list;
  }();
  return names;
}

Config preset(std::string_view name) {
  for (const Preset& p : kPresets) {
    if (name != p.name) continue;
    Config config;
    config.layers = p.layers;
    config.heads = config.kv_heads = p.heads;
    config.width = p.width;
    config.head_width = p.width / p.heads;
    config.context = p.context;
    config.feedforward = 4 * p.width;
    return config;
  }
  throw Error(fmt::format("[preset] expected one of {}, found '{}'", fmt::join(preset_names(), ", "), name));
}

void check_config(const Config& config) {
  const auto positive = [](const char* what, std::int64_t value) {
    LOCKSTEP_CHECK(value > 0, "[gpt] expected {} above 0, found {}", what, value);
  };
  positive("a vocabulary", config.vocabulary);
  positive("a context", config.context);
  positive("a number of layers", config.layers);
  positive("a number of heads", config.heads);
  positive("a width", config.width);
  positive("a feedforward width", config.feedforward);
  LOCKSTEP_CHECK(config.norm_eps >= 0.0 && std::isfinite(config.norm_eps),
                 "[gpt] expected an epsilon of norms (layer_norm_epsilon, rms_norm_eps) of at least 0, found {}",
                 config.norm_eps);
  LOCKSTEP_CHECK(config.rotary_base > 0.0 && std::isfinite(config.rotary_base),
                 "[gpt] expected a rope_theta above 0, found {}", config.rotary_base);
  LOCKSTEP_CHECK(config.lora.rank >= 0, "[gpt] expected a LoRA rank of at least 0, found {}", config.lora.rank);
  if (config.family == Family::gpt2) {
    LOCKSTEP_CHECK(config.width % config.heads == 0, "[gpt] {} heads do not divide the width {}", config.heads,
                   config.width);
  } else {
    LOCKSTEP_CHECK(config.kv_heads > 0 && config.heads % config.kv_heads == 0,
                   "[gpt] {} heads are no multiple of {} heads of keys", config.heads, config.kv_heads);
    LOCKSTEP_CHECK(config.head_width > 0 && config.head_width % 2 == 0, "[gpt] expected an even head width, found {}",
                   config.head_width);
  }
}

Config read_config(const std::string& path) {
  const JsonObject entries = JsonObject::read(path, "[config]");
  const std::string type = entries.text("model_type", "");
  LOCKSTEP_CHECK(type == "gpt2" || type == "llama",
                 "[config] '{}': expected \"model_type\" to be gpt2 or llama, found '{}'", path, type);
  Config config = type == "gpt2" ? gpt2_of(entries) : llama_of(entries);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_width == 0 && config.heads > 0) config.head_width = config.width / config.heads;
  check_config(config);
  return config;
}

void write_config(const Config& config, const std::string& path) {
  nlohmann::json json;
  if (config.family == Family::gpt2) {
    json = {{"model_type", "gpt2"},
            {"architectures", {"GPT2LMHeadModel"}},
            {"vocab_size", config.vocabulary},
            {"n_positions", config.context},
            {"n_layer", config.layers},
            {"n_head", config.heads},
            {"n_embd", config.width},
            {"n_inner", config.feedforward},
            {"layer_norm_epsilon", config.norm_eps},
            {"activation_function", "gelu_new"},
            {"resid_pdrop", config.dropout},
            {"embd_pdrop", config.dropout},
            {"attn_pdrop", config.dropout},
            {"tie_word_embeddings", config.tied}};
  } else {
    json = {{"model_type", "llama"},
            {"architectures", {"LlamaForCausalLM"}},
            {"vocab_size", config.vocabulary},
            {"max_position_embeddings", config.context},
            {"num_hidden_layers", config.layers},
            {"num_attention_heads", config.heads},
            {"num_key_value_heads", config.kv_heads},
            {"head_dim", config.head_width},
            {"hidden_size", config.width},
            {"intermediate_size", config.feedforward},
            {"rms_norm_eps", config.norm_eps},
            {"rope_theta", config.rotary_base},
            {"hidden_act", "silu"},
            {"tie_word_embeddings", config.tied}};
  }
  write_file(path, json.dump(2) + "\n");
}

}  // namespace lockstep::gpt
