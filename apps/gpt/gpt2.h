#pragma once

#include "apps/gpt/language_model.h"
#include "apps/gpt/projection.h"
#include "lockstep/nn/container.h"
#include "lockstep/nn/dropout.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/norm.h"

namespace lockstep::gpt {

/// Self-attention of GPT-2: one projection for queries, keys and values.
struct Gpt2Attention : nn::Module {
  Gpt2Attention(nn::Module* parent, std::string_view name, const Config& config);
  Tensor forward(const Tensor& x, CacheSlot slot);
  /// Of the ranks over which the heads are divided.
  void set_rank(int rank) { rank_ = rank; }

  Projection c_attn, c_proj;
  nn::Dropout dropout;

 private:
  const std::int64_t heads_, head_width_;
  int rank_ = 0;
  const double attention_dropout_;
};

struct Gpt2Mlp : nn::Module {
  Gpt2Mlp(nn::Module* parent, std::string_view name, const Config& config);
  Tensor forward(Tensor x) override;

  Projection c_fc, c_proj;
  nn::Dropout dropout;
};

struct Gpt2Block : nn::Module {
  explicit Gpt2Block(const Config& config);
  Tensor forward(const Tensor& x, CacheSlot slot);

  nn::LayerNorm ln_1;
  Gpt2Attention attn;
  nn::LayerNorm ln_2;
  Gpt2Mlp mlp;
};

/// Radford et al., "Language models are unsupervised multitask learners" (2019). Starts from a normal distribution of
/// deviation 0.02, divided by sqrt(2 * layers) for what is added to the residual stream.
class Gpt2 final : public LanguageModel {
 public:
  explicit Gpt2(const Config& config);

  nn::Embedding wte;
  nn::Embedding wpe;
  nn::Dropout dropout;
  nn::ModuleList<Gpt2Block> h;
  nn::LayerNorm ln_f;
  nn::Module lm_head{this, "lm_head"};
  nn::Parameter lm_head_weight;  ///< lm_head.weight [vocabulary, width]; undefined if it is tied to wte

  std::vector<distributed::PipelineLayer> layers() override;
  std::vector<distributed::TensorRule> tensor_plan(std::int64_t shards, DividedTokens tokens) const override;
  void set_divided(const distributed::TensorParallel& divided) override;

 private:
  Tensor embed(const Tensor& tokens, std::int64_t first);
  Tensor hidden(const Tensor& tokens, KeyValueCache* cache) override;
  Tensor output_weight() override;
};

}  // namespace lockstep::gpt
