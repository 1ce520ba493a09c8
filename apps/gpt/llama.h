#pragma once

#include "apps/gpt/language_model.h"
#include "apps/gpt/projection.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/norm.h"
#include "lockstep/nn/transformer.h"

namespace lockstep::gpt {

/// Self-attention of Llama: rotary positions, and heads of keys and values that several heads of queries share.
struct LlamaAttention : nn::Module {
  LlamaAttention(nn::Module* parent, std::string_view name, const Config& config);
  /// `angles`: of the positions of x.
  Tensor forward(const Tensor& x, const nn::RotaryAngles& angles, CacheSlot slot);

  Projection q_proj, k_proj, v_proj, o_proj;

 private:
  const std::int64_t head_width_;
};

struct LlamaMlp : nn::Module {
  LlamaMlp(nn::Module* parent, std::string_view name, const Config& config);
  Tensor forward(Tensor x) override;

  Projection gate_proj, up_proj, down_proj;
};

struct LlamaBlock : nn::Module {
  explicit LlamaBlock(const Config& config);
  Tensor forward(const Tensor& x, const nn::RotaryAngles& angles, CacheSlot slot);

  LlamaAttention self_attn;
  LlamaMlp mlp;
  nn::RMSNorm input_layernorm;
  nn::RMSNorm post_attention_layernorm;
};

/// What LlamaForCausalLM calls "model".
struct LlamaStack : nn::Module {
  LlamaStack(nn::Module* parent, std::string_view name, const Config& config);

  nn::Embedding embed_tokens;
  nn::ModuleList<LlamaBlock> layers;
  nn::RMSNorm norm;
};

/// Touvron et al., "LLaMA: open and efficient foundation language models" (2023).
class Llama final : public LanguageModel {
 public:
  explicit Llama(const Config& config);

  LlamaStack model;
  nn::Module lm_head{this, "lm_head"};
  nn::Parameter lm_head_weight;  ///< lm_head.weight [vocabulary, width]; undefined if it is tied to embed_tokens

  std::vector<distributed::PipelineLayer> layers() override;
  std::vector<distributed::TensorRule> tensor_plan(std::int64_t shards, DividedTokens tokens) const override;

 private:
  nn::RotaryAngles angles_of(std::int64_t length, std::int64_t first, Device device);
  Tensor hidden(const Tensor& tokens, KeyValueCache* cache) override;
  Tensor output_weight() override;

  nn::RotaryAngles angles_;  // of the whole context
};

}  // namespace lockstep::gpt
