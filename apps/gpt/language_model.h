#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/gpt/config.h"
#include "apps/gpt/key_value_cache.h"
#include "lockstep/distributed/pipeline_parallel/pipeline_parallel.h"
#include "lockstep/distributed/tensor_parallel/tensor_parallel.h"
#include "lockstep/nn/module.h"

namespace lockstep::gpt {

/// Where ranks that hold layers together have their own tokens alone.
enum class DividedTokens : std::uint8_t {
  none,
  between_layers,  ///< sequence parallelism: between layers that are divided
  everywhere,      ///< context parallelism: no layer is divided
};

/// A decoder-only transformer over tokens. Its parameters have the names of transformers' GPT2LMHeadModel (without
/// "transformer.") or LlamaForCausalLM; shapes are those of nn::Linear, [out, in], also where GPT-2's files have them
/// transposed.
class LanguageModel : public nn::Module {
 public:
  /// A new model with fresh weights. Throws Error for a configuration that does not fit together.
  static std::unique_ptr<LanguageModel> make(const Config& config);

  const Config& config() const { return config_; }

  /// Logits [N, T, vocabulary] of tokens [N, T] (int64), T up to the context.
  Tensor forward(Tensor tokens) override;
  /// The same for tokens that follow those in the cache, which takes them in. Logits of the last position alone, [N,
  /// vocabulary].
  Tensor next_logits(const Tensor& tokens, KeyValueCache* cache);
  /// Mean cross-entropy of the tokens that follow, `targets` [N, T]. Logits beyond
  /// config().logits_at_once are made a piece at a time, so that a large vocabulary does not take more memory than all
  /// else.
  Tensor loss(const Tensor& tokens, const Tensor& targets);
  /// The same from what the layers give, [N, T, width].
  Tensor loss_of(const Tensor& hidden, const Tensor& targets);

  /// What a pipeline takes the model for: embeddings, blocks, and the last norm with the output projection.
  virtual std::vector<distributed::PipelineLayer> layers() = 0;
  /// How its layers are divided into `shards` parts, and tokens. The table of tokens is divided if it is the output
  /// projection too, but not where tokens are divided everywhere.
  virtual std::vector<distributed::TensorRule> tensor_plan(std::int64_t shards, DividedTokens tokens) const = 0;
  /// Says that layers are divided as tensor_plan() has it, so that loss_of() computes with a part of the logits if the
  /// table of tokens is, and attention knows its heads; as long as the model is used.
  virtual void set_divided(const distributed::TensorParallel& divided);

 protected:
  explicit LanguageModel(const Config& config) : config_(config) {}
  /// What the output projection takes, [N, T, width].
  virtual Tensor hidden(const Tensor& tokens, KeyValueCache* cache) = 0;
  /// The output projection's weight [vocabulary, width]; the token embedding if they are tied.
  virtual Tensor output_weight() = 0;
  /// Throws Error for tokens of another shape, or more than the context.
  void check_tokens(const Tensor& tokens, KeyValueCache* cache) const;

  /// Of x [N, T, width], what this rank computes between divided layers: its tokens, or all.
  Tensor own_tokens(const Tensor& x) const { return divided_ ? divided_->own_tokens(x) : x; }
  /// Whether the table of tokens is divided into so many parts.
  bool divides_table(std::int64_t shards) const { return config_.tied && config_.vocabulary >= shards; }
  /// T of x [N, own tokens, width].
  std::int64_t length_of(const Tensor& x) const;

  const Config config_;

 private:
  const distributed::TensorParallel* divided_ = nullptr;
  bool divides_table_ = false;
};

}  // namespace lockstep::gpt
