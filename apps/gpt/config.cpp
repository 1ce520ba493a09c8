#include "apps/gpt/config.h"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "apps/gpt/files.h"
#include "lockstep/core/check.h"

namespace lockstep::gpt {
namespace {

using Json = nlohmann::json;

struct Preset {
  const char* name;
  std::int64_t layers, heads, width, context;
};
constexpr Preset kPresets[] = {{"nano", 4, 4, 128, 64}, {"small", 6, 6, 384, 256}, {"gpt2", 12, 12, 768, 1024}};

/// The entries of a config.json.
class Entries {
 public:
  explicit Entries(const std::string& path) : path_(path) {
    json_ = Json::parse(read_file(path, "the model's"), nullptr, false);
    LOCKSTEP_CHECK(json_.is_object(), "[config] '{}' is not a JSON object", path);
  }

  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }
  const Json& at(const char* key) const {
    LOCKSTEP_CHECK(has(key), "[config] '{}' has no \"{}\"", path_, key);
    return json_[key];
  }
  std::int64_t integer(const char* key) const {
    const Json& value = at(key);
    LOCKSTEP_CHECK(value.is_number_integer(), "[config] '{}': expected a whole number for \"{}\", found {}", path_, key,
                   value.dump());
    return value.get<std::int64_t>();
  }
  std::int64_t integer(const char* key, std::int64_t fallback) const { return has(key) ? integer(key) : fallback; }
  double number(const char* key, double fallback) const {
    if (!has(key)) return fallback;
    const Json& value = at(key);
    LOCKSTEP_CHECK(value.is_number(), "[config] '{}': expected a number for \"{}\", found {}", path_, key,
                   value.dump());
    return value.get<double>();
  }
  bool flag(const char* key, bool fallback) const {
    if (!has(key)) return fallback;
    LOCKSTEP_CHECK(at(key).is_boolean(), "[config] '{}': expected true or false for \"{}\"", path_, key);
    return at(key).get<bool>();
  }
  std::string text(const char* key, const char* fallback) const {
    if (!has(key)) return fallback;
    LOCKSTEP_CHECK(at(key).is_string(), "[config] '{}': expected a string for \"{}\"", path_, key);
    return at(key).get<std::string>();
  }
  /// Throws Error unless the entry is absent or equals `computed`.
  template <typename Value>
  void require(const char* key, const Value& computed) const {
    LOCKSTEP_CHECK(!has(key) || json_[key] == Json(computed), "[config] '{}': \"{}\" is {}; only {} is computed here",
                   path_, key, json_[key].dump(), Json(computed).dump());
  }

 private:
  std::string path_;
  Json json_;
};

Config gpt2_of(const Entries& entries) {
  Config config;
  config.family = Family::gpt2;
  config.vocabulary = entries.integer("vocab_size");
  config.context = entries.integer("n_positions");
  config.layers = entries.integer("n_layer");
  config.heads = entries.integer("n_head");
  config.width = entries.integer("n_embd");
  config.feedforward = entries.integer("n_inner", 4 * config.width);
  config.norm_eps = entries.number("layer_norm_epsilon", 1e-5);
  config.tied = entries.flag("tie_word_embeddings", true);
  config.dropout = entries.number("resid_pdrop", 0.0);
  entries.require("activation_function", "gelu_new");
  entries.require("scale_attn_weights", true);
  entries.require("scale_attn_by_inverse_layer_idx", false);
  return config;
}

Config llama_of(const Entries& entries, const std::string& path) {
  Config config;
  config.family = Family::llama;
  config.vocabulary = entries.integer("vocab_size");
  config.context = entries.integer("max_position_embeddings");
  config.layers = entries.integer("num_hidden_layers");
  config.heads = entries.integer("num_attention_heads");
  config.kv_heads = entries.integer("num_key_value_heads", config.heads);
  config.width = entries.integer("hidden_size");
  config.head_width = entries.integer("head_dim", config.heads > 0 ? config.width / config.heads : 0);
  config.feedforward = entries.integer("intermediate_size");
  config.norm_eps = entries.number("rms_norm_eps", 1e-6);
  config.tied = entries.flag("tie_word_embeddings", false);
  config.rotary_base = entries.number("rope_theta", 10000.0);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!entries.has(key)) continue;
    const Json& rope = entries.at(key);
    const std::string kind = rope.value("rope_type", rope.value("type", "default"));
    LOCKSTEP_CHECK(kind == "default", "[config] '{}': \"{}\" of type {}; only \"default\" is computed here", path, key,
                   kind);
    config.rotary_base = rope.value("rope_theta", config.rotary_base);
  }
  entries.require("hidden_act", "silu");
  entries.require("attention_bias", false);
  entries.require("mlp_bias", false);
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
  const Entries entries(path);
  const std::string type = entries.text("model_type", "");
  LOCKSTEP_CHECK(type == "gpt2" || type == "llama",
                 "[config] '{}': expected \"model_type\" to be gpt2 or llama, found '{}'", path, type);
  Config config = type == "gpt2" ? gpt2_of(entries) : llama_of(entries, path);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.head_width == 0 && config.heads > 0) config.head_width = config.width / config.heads;
  check_config(config);
  return config;
}

void write_config(const Config& config, const std::string& path) {
  Json json;
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
