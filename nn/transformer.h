#pragma once

// What transformers are made of.

#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/nn/container.h"
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

/// What attention leaves out, as torch.nn's layers are told it: booleans are true where a query does *not* see a key,
/// the other way round than in scaled_dot_product_attention().
struct AttentionMasks {
  Tensor attn_mask = {};         ///< [L, S], [N * heads, L, S] or what broadcasts to [N, heads, L, S]: bool, or numbers
                                 ///< that are added to the scores
  Tensor key_padding_mask = {};  ///< bool [N, S], without batches [S]: keys that no query sees
  bool is_causal = false;        ///< query i sees keys 0 ... i, beside what the masks say
};

/// Multi-head attention of Vaswani et al., "Attention is all you need" (2017), on batches [N, T, width], or one
/// sequence [T, width]. Parameters in_proj_weight [3 width, width], in_proj_bias, out_proj.weight and out_proj.bias, as
/// torch.nn.MultiheadAttention with batch_first = True names, shapes and draws them; weights are never returned.
class MultiheadAttention : public Module {
 public:
  /// Throws Error unless `heads` divides `width`.
  MultiheadAttention(std::int64_t width, std::int64_t heads, MultiheadAttentionOptions options = {});
  MultiheadAttention(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                     MultiheadAttentionOptions options = {});

  using Module::forward;
  /// Self-attention.
  Tensor forward(Tensor x) override;
  /// Of queries [N, L, width] to keys and values [N, S, width], which may all be one tensor, or all of them without N.
  /// A query that sees no key gets 0. The options' is_causal is not looked at. Throws Error for masks of other shapes.
  Tensor forward(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {});
  using Module::operator();
  /// forward().
  Tensor operator()(const Tensor& query, const Tensor& key, const Tensor& value, const AttentionMasks& masks = {}) {
    const detail::ProfiledCall profiled(*this);
    return forward(query, key, value, masks);
  }

  /// Self-attention computes its first projection by `project` from now on, for `heads` heads from number `first` on,
  /// which it leaves side by side: queries, keys, values; attention to others each of the three by `project_one`. For a
  /// layer whose heads are divided over ranks. What is projected has `lengths` times as many tokens as x, where each
  /// rank has its own: masks are of all of them.
  void set_projection(Linear::Function project, Linear::Function project_one, std::int64_t heads, std::int64_t first,
                      std::int64_t lengths = 1);
  std::int64_t heads() const { return heads_; }  ///< of this layer

  Parameter in_proj_weight;  ///< [3 width, width]: of queries, keys and values
  Parameter in_proj_bias;    ///< [3 width]; undefined without bias
  Linear out_proj;           ///< width to width

 private:
  Tensor attend_to_itself(const Tensor& x, const Tensor& mask, bool is_causal);
  Tensor project(const Tensor& x, std::int64_t part) const;

  std::int64_t heads_, first_head_ = 0, all_heads_, lengths_ = 1;
  Linear::Function project_, project_one_;
  MultiheadAttentionOptions options_;
};

/// Cosine and sine for rotary(): angle = position * base^(-2i / width), for the positions from `first` on.
struct RotaryAngles {
  Tensor cosine;  ///< [length, width / 2]
  Tensor sine;    ///< [length, width / 2]
};
/// Throws Error unless `width` is even and positive. float32, on the CPU; computed in double.
RotaryAngles rotary_angles(std::int64_t length, std::int64_t width, double base = 10000.0, std::int64_t first = 0);

/// What stands between the two products of a transformer's layer.
enum class TransformerActivation : std::uint8_t { relu, gelu };

/// Options of TransformerEncoderLayer and TransformerDecoderLayer, under PyTorch's names and with its defaults.
struct TransformerLayerOptions {
  std::int64_t dim_feedforward = 2048;  ///< width between linear1 and linear2
  double dropout = 0.1;                 ///< of attention weights, of what is added to x, and after the activation
  TransformerActivation activation = TransformerActivation::relu;  ///< between linear1 and linear2
  bool norm_first = false;       ///< norms before what is added to x, not after the sum
  bool bias = true;              ///< of projections and norms
  double layer_norm_eps = 1e-5;  ///< of the norms
};

/// torch.nn.TransformerEncoderLayer with batch_first = True, in names, shapes and values: [N, S, width] to the same, by
/// self-attention and two products. Vaswani et al., "Attention is all you need" (2017).
class TransformerEncoderLayer : public Module {
 public:
  /// Throws Error unless `heads` divides `width`.
  TransformerEncoderLayer(std::int64_t width, std::int64_t heads, TransformerLayerOptions options = {});
  TransformerEncoderLayer(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                          TransformerLayerOptions options = {});

  using Module::forward;
  Tensor forward(Tensor x) override;  ///< without masks
  Tensor forward(Tensor x, const AttentionMasks& masks);
  using Module::operator();
  /// forward().
  Tensor operator()(const Tensor& x, const AttentionMasks& masks) {
    const detail::ProfiledCall profiled(*this);
    return forward(x, masks);
  }

  MultiheadAttention self_attn;  ///< x to itself
  Linear linear1;                ///< width to dim_feedforward
  Dropout dropout;               ///< after the activation
  Linear linear2;                ///< dim_feedforward to width
  LayerNorm norm1, norm2;        ///< of self_attn, and of the two products
  Dropout dropout1, dropout2;    ///< of what self_attn and the two products add to x

 private:
  TransformerLayerOptions options_;
};

/// Options of TransformerBlock.
struct TransformerBlockOptions {
  std::int64_t feedforward = 0;  ///< width between linear1 and linear2; 0: four times the block's
  double dropout = 0.1;          ///< of attention weights, of what is added to x, and between linear1 and linear2
  bool is_causal = true;         ///< a position sees itself and those before it
  bool bias = true;              ///< of projections and norms
  double eps = 1e-5;             ///< of the norms
};

/// The layer of today's language models: a TransformerEncoderLayer with the norms first (Xiong et al., "On layer
/// normalization in the transformer architecture", 2020) and gelu, causal unless told otherwise:
///   x + self_attn(norm1(x)), then x + linear2(gelu(linear1(norm2(x))))
class TransformerBlock : public TransformerEncoderLayer {
 public:
  TransformerBlock(std::int64_t width, std::int64_t heads, TransformerBlockOptions options = {});
  TransformerBlock(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                   TransformerBlockOptions options = {});

  using TransformerEncoderLayer::forward;
  Tensor forward(Tensor x) override;

 private:
  bool is_causal_;
};

/// torch.nn.TransformerDecoderLayer with batch_first = True: [N, T, width] to the same, by self-attention, attention to
/// the encoder's `memory` [N, S, width], and two products.
class TransformerDecoderLayer : public ModuleOf<TransformerDecoderLayer> {
 public:
  /// Throws Error unless `heads` divides `width`.
  TransformerDecoderLayer(std::int64_t width, std::int64_t heads, TransformerLayerOptions options = {});
  TransformerDecoderLayer(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                          TransformerLayerOptions options = {});

  /// `masks` of x to itself, `memory_masks` of x to memory.
  Tensor forward(Tensor x, const Tensor& memory, const AttentionMasks& masks = {},
                 const AttentionMasks& memory_masks = {});
  /// forward().
  Tensor operator()(const Tensor& x, const Tensor& memory, const AttentionMasks& masks = {},
                    const AttentionMasks& memory_masks = {}) {
    const detail::ProfiledCall profiled(*this);
    return forward(x, memory, masks, memory_masks);
  }

  MultiheadAttention self_attn, multihead_attn;  ///< x to itself, and to memory
  Linear linear1;                                ///< width to dim_feedforward
  Dropout dropout;                               ///< after the activation
  Linear linear2;                                ///< dim_feedforward to width
  LayerNorm norm1, norm2, norm3;                 ///< of self_attn, of multihead_attn, and of the two products
  Dropout dropout1, dropout2, dropout3;          ///< of what these three add to x

 private:
  TransformerLayerOptions options_;
};

/// Options of TransformerEncoder and TransformerDecoder.
struct TransformerStackOptions {
  TransformerLayerOptions layer = {};  ///< of each layer
  bool norm = false;                   ///< a norm after the last layer
};

/// `count` TransformerEncoderLayers one after the other: "layers.0" ..., and "norm" if asked for. [N, S, width].
class TransformerEncoder : public Module {
 public:
  TransformerEncoder(std::int64_t width, std::int64_t heads, int count, TransformerStackOptions options = {});
  TransformerEncoder(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads, int count,
                     TransformerStackOptions options = {});

  using Module::forward;
  Tensor forward(Tensor x) override;  ///< without masks
  Tensor forward(Tensor x, const AttentionMasks& masks);
  using Module::operator();
  /// forward().
  Tensor operator()(const Tensor& x, const AttentionMasks& masks) {
    const detail::ProfiledCall profiled(*this);
    return forward(x, masks);
  }

  ModuleList<TransformerEncoderLayer> layers{this, "layers"};  ///< in the order of their work
  std::unique_ptr<LayerNorm> norm;                             ///< null without
};

/// `count` TransformerDecoderLayers one after the other: "layers.0" ..., and "norm" if asked for. [N, T, width].
class TransformerDecoder : public ModuleOf<TransformerDecoder> {
 public:
  TransformerDecoder(std::int64_t width, std::int64_t heads, int count, TransformerStackOptions options = {});
  TransformerDecoder(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads, int count,
                     TransformerStackOptions options = {});

  /// As TransformerDecoderLayer's.
  Tensor forward(Tensor x, const Tensor& memory, const AttentionMasks& masks = {},
                 const AttentionMasks& memory_masks = {});
  /// forward().
  Tensor operator()(const Tensor& x, const Tensor& memory, const AttentionMasks& masks = {},
                    const AttentionMasks& memory_masks = {}) {
    const detail::ProfiledCall profiled(*this);
    return forward(x, memory, masks, memory_masks);
  }

  ModuleList<TransformerDecoderLayer> layers{this, "layers"};  ///< in the order of their work
  std::unique_ptr<LayerNorm> norm;                             ///< null without
};

/// Options of Transformer.
struct TransformerOptions {
  int encoder_layers = 6;              ///< number of layers in the encoder
  int decoder_layers = 6;              ///< number of layers in the decoder
  TransformerLayerOptions layer = {};  ///< of each layer of both
};

/// What each attention of a Transformer leaves out.
struct TransformerMasks {
  AttentionMasks src = {};     ///< in the encoder
  AttentionMasks tgt = {};     ///< of the decoder to itself: .is_causal, as a rule
  AttentionMasks memory = {};  ///< of the decoder to the encoder's result
};

/// torch.nn.Transformer with batch_first = True: "encoder" and "decoder", each with a norm at its end, weights of two
/// dimensions drawn by Glorot and Bengio's uniform rule.
class Transformer : public ModuleOf<Transformer> {
 public:
  explicit Transformer(std::int64_t width = 512, std::int64_t heads = 8, TransformerOptions options = {});
  Transformer(Module* parent, std::string_view name, std::int64_t width = 512, std::int64_t heads = 8,
              TransformerOptions options = {});

  /// src [N, S, width] and tgt [N, T, width] to [N, T, width].
  Tensor forward(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks = {});
  /// forward().
  Tensor operator()(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks = {}) {
    const detail::ProfiledCall profiled(*this);
    return forward(src, tgt, masks);
  }

  /// [length, length]: 0 where a position sees another, -infinity where it does not (later ones). What .is_causal says
  /// without a tensor.
  static Tensor generate_square_subsequent_mask(std::int64_t length);

  TransformerEncoder encoder;  ///< of src
  TransformerDecoder decoder;  ///< of tgt, which looks at the encoder's result
};

}  // namespace lockstep::nn
