#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::gpt {

/// Which published layout a model has, in architecture and names.
enum class Family : unsigned char {
  gpt2,   ///< learned positions, layer norm, gelu; GPT2LMHeadModel of Hugging Face's transformers
  llama,  ///< rotary positions, RMS norm, gated silu, shared key heads; LlamaForCausalLM
};

/// LoRA (Hu et al., "LoRA: low-rank adaptation of large language models", 2021): each projection of the blocks computes
/// W x + alpha / rank * B A x.
struct LoraConfig {
  std::int64_t rank = 0;  ///< 0: none
  double alpha = 16.0;
};

/// The shape of a model.
struct Config {
  Family family = Family::gpt2;
  std::int64_t vocabulary = 0;
  std::int64_t context = 0;  ///< most tokens that it looks at
  std::int64_t layers = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;     ///< llama: heads of keys and values, which divide `heads`
  std::int64_t head_width = 0;   ///< width / heads, if the file of a llama does not say otherwise
  std::int64_t width = 0;        ///< of the embeddings
  std::int64_t feedforward = 0;  ///< width inside of a block's MLP
  double norm_eps = 1e-5;
  double rotary_base = 10000.0;  ///< llama
  bool tied = true;              ///< the output projection is the token embedding

  // Not part of the shape.
  double dropout = 0.0;    ///< gpt2: of embeddings, attention weights and what blocks add
  bool recompute = false;  ///< keep each block's input alone for backward (nn::recompute)
  /// Logits that loss() makes at once; where there are more, it makes a quarter of these at a time, and for backward
  /// again.
  std::int64_t logits_at_once = std::int64_t{1} << 26;
  LoraConfig lora = {};
};

/// "nano" (4 layers x 128, context 64), "small" (6 x 384, 256), "gpt2" (12 x 768, 1,024).
const std::vector<std::string>& preset_names();
/// A gpt2 of that size, without vocabulary. Throws Error, listing the names, for one it does not know.
Config preset(std::string_view name);

/// Throws Error naming what does not fit.
void check_config(const Config& config);

/// A file config.json as transformers writes it, of model_type gpt2 or llama, and back. Throws Error naming file and
/// key for what is missing, of another type, or not computed here (another activation, scaled rotary positions).
Config read_config(const std::string& path);
void write_config(const Config& config, const std::string& path);

}  // namespace lockstep::gpt
