#pragma once

#include <cstdint>

#include "lockstep/nn/dropout.h"
#include "lockstep/nn/linear.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/norm.h"

namespace lockstep::nn {

/// Options of MultiheadAttention.
struct MultiheadAttentionOptions {
  double dropout = 0.0;    ///< of the attention weights, while training
  bool bias = true;        ///< of all projections
  bool is_causal = false;  ///< of self-attention: a position sees itself and those before it
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
  /// Of queries [N, L, width] to keys and values [N, S, width]. `mask` as attn_mask of scaled_dot_product_attention(),
  /// [L, S] or what broadcasts to [N, heads, L, S]; is_causal is not looked at.
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask = {});
  using Module::operator();
  /// forward().
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask = {}) {
    const detail::ProfiledCall profiled(*this);
    return forward(query, key, value, mask);
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
  Tensor project(const Tensor& x, std::int64_t part) const;

  std::int64_t heads_, first_head_ = 0, all_heads_;
  Linear::Function project_;
  MultiheadAttentionOptions options_;
};

/// Options of TransformerBlock.
struct TransformerBlockOptions {
  std::int64_t feedforward = 0;  ///< width between linear1 and linear2; 0: four times the block's
  double dropout = 0.1;          ///< of attention weights, of what is added to x, and between linear1 and linear2
  bool is_causal = true;         ///< a position sees itself and those before it
  bool bias = true;              ///< of projections and norms
  double eps = 1e-5;             ///< of the norms
};

/// A layer of a transformer, [N, T, width] to the same, with the norms first (Xiong et al., "On layer normalization in
/// the transformer architecture", 2020):
///   x + self_attn(norm1(x)), then x + linear2(gelu(linear1(norm2(x))))
/// Names and shapes are those of torch.nn.TransformerEncoderLayer, and so are the values with norm_first = True,
/// batch_first = True and activation = "gelu".
class TransformerBlock : public Module {
 public:
  TransformerBlock(std::int64_t width, std::int64_t heads, TransformerBlockOptions options = {});
  TransformerBlock(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                   TransformerBlockOptions options = {});
  Tensor forward(Tensor x) override;

  MultiheadAttention self_attn;
  Linear linear1;
  Dropout dropout;
  Linear linear2;
  LayerNorm norm1;
  LayerNorm norm2;
  Dropout dropout1;
  Dropout dropout2;
};

/// Cosine and sine for rotary(): angle = position * base^(-2i / width), for the positions from `first` on.
struct RotaryAngles {
  Tensor cosine;  ///< [length, width / 2]
  Tensor sine;    ///< [length, width / 2]
};
/// Throws Error unless `width` is even and positive. float32, on the CPU; computed in double.
RotaryAngles rotary_angles(std::int64_t length, std::int64_t width, double base = 10000.0, std::int64_t first = 0);

}  // namespace lockstep::nn
