#pragma once

#include <cstdint>

#include "lockstep/nn/linear.h"
#include "lockstep/nn/module.h"

namespace lockstep::nn {

/// Options of MultiheadAttention.
struct MultiheadAttentionOptions {
  double dropout = 0.0;    ///< of the attention weights, while training
  bool bias = true;        ///< of all projections
  bool is_causal = false;  ///< of self-attention: a position sees itself and those before it
};

/// What attention leaves out, as torch.nn's layers are told it: booleans are true where a query does *not* see a key,
/// the other way round than in scaled_dot_product_attention().
struct AttentionMasks {
  Tensor attn_mask = {};         ///< [L, S], [N * heads, L, S] or what broadcasts to [N, heads, L, S]: bool, or numbers
                                 ///< that are added to the scores
  Tensor key_padding_mask = {};  ///< bool [N, S]: keys that no query sees
  bool is_causal = false;        ///< query i sees keys 0 ... i, beside what the masks say
};

/// Multi-head attention of Vaswani et al., "Attention is all you need" (2017), on batches [N, T, width]. Parameters
/// in_proj_weight [3 width, width], in_proj_bias, out_proj.weight and out_proj.bias, as torch.nn.MultiheadAttention
/// with batch_first = True names, shapes and draws them; weights are never returned.
class MultiheadAttention : public Module {
 public:
  /// Throws Error unless `heads` divides `width`.
  MultiheadAttention(std::int64_t width, std::int64_t heads, MultiheadAttentionOptions options = {});
  MultiheadAttention(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                     MultiheadAttentionOptions options = {});

  using Module::forward;
  /// Self-attention.
  Tensor forward(Tensor x) override;
  /// Of queries [N, L, width] to keys and values [N, S, width], which may all be one tensor. A query that sees no key
  /// gets 0. The options' is_causal is not looked at. Throws Error for masks of other shapes.
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {});
  using Module::operator();
  /// forward().
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {}) {
    const detail::ProfiledCall profiled(*this);
    return forward(query, key, value, masks);
  }

  /// Self-attention computes its first projection by this from now on, for `heads` heads from number `first` on, which
  /// it leaves side by side: queries, keys, values. For a layer whose heads are divided over ranks; attention to others
  /// then throws Error.
  void set_projection(Linear::Function project, std::int64_t heads, std::int64_t first);
  std::int64_t heads() const { return heads_; }  ///< of this layer

  Parameter in_proj_weight;  ///< [3 width, width]: of queries, keys and values
  Parameter in_proj_bias;    ///< [3 width]; undefined without bias
  Linear out_proj;           ///< width to width

 private:
  Tensor attend_to_itself(const Tensor& x, const Tensor& mask, bool is_causal);
  Tensor project(const Tensor& x, std::int64_t part) const;

  std::int64_t heads_, first_head_ = 0, all_heads_;
  Linear::Function project_;
  MultiheadAttentionOptions options_;
};

/// Cosine and sine for rotary(): angle = position * base^(-2i / width), for the positions from `first` on.
struct RotaryAngles {
  Tensor cosine;  ///< [length, width / 2]
  Tensor sine;    ///< [length, width / 2]
};
/// Throws Error unless `width` is even and positive. float32, on the CPU; computed in double.
RotaryAngles rotary_angles(std::int64_t length, std::int64_t width, double base = 10000.0, std::int64_t first = 0);

}  // namespace lockstep::nn
