#include "lockstep/nn/transformer.h"

#include <limits>
#include <memory>
#include <utility>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/tril/tril.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {
namespace {

MultiheadAttentionOptions attention_of(const TransformerLayerOptions& options) {
  return {.dropout = options.dropout, .bias = options.bias};
}
LayerNormOptions norm_of(const TransformerLayerOptions& options) {
  return {.eps = options.layer_norm_eps, .bias = options.bias};
}

// The two products of a layer, with what stands between them.
template <typename Layer>
Tensor feed_forward(Layer& layer, TransformerActivation activation, const Tensor& x) {
  const Tensor inner = layer.linear1(x);
  return layer.linear2(layer.dropout(activation == TransformerActivation::relu ? relu(inner) : gelu(inner)));
}

// x + f(x), with a norm before f or after the sum.
template <typename F>
Tensor residual(const Tensor& x, LayerNorm& norm, bool norm_first, F&& f) {
  return norm_first ? x + f(norm(x)) : norm(x + f(x));
}

void check_count(const char* name, int count) {
  LOCKSTEP_CHECK(count >= 0, "[nn::{}] expected a number of layers of at least 0, found {}", name, count);
}

}  // namespace

TransformerEncoderLayer::TransformerEncoderLayer(std::int64_t width, std::int64_t heads,
                                                 TransformerLayerOptions options)
    : TransformerEncoderLayer(nullptr, {}, width, heads, options) {}

TransformerEncoderLayer::TransformerEncoderLayer(Module* parent, std::string_view name, std::int64_t width,
                                                 std::int64_t heads, TransformerLayerOptions options)
    : Module(parent, name),
      self_attn(this, "self_attn", width, heads, attention_of(options)),
      linear1(this, "linear1", width, options.dim_feedforward, {.bias = options.bias}),
      dropout(this, "dropout", options.dropout),
      linear2(this, "linear2", options.dim_feedforward, width, {.bias = options.bias}),
      norm1(this, "norm1", width, norm_of(options)),
      norm2(this, "norm2", width, norm_of(options)),
      dropout1(this, "dropout1", options.dropout),
      dropout2(this, "dropout2", options.dropout),
      options_(options) {}

Tensor TransformerEncoderLayer::forward(Tensor x) {
  return forward(std::move(x), {});
}

Tensor TransformerEncoderLayer::forward(Tensor x, const AttentionMasks& masks) {
  x = residual(x, norm1, options_.norm_first, [&](const Tensor& y) { return dropout1(self_attn(y, y, y, masks)); });
  return residual(x, norm2, options_.norm_first,
                  [&](const Tensor& y) { return dropout2(feed_forward(*this, options_.activation, y)); });
}

TransformerBlock::TransformerBlock(std::int64_t width, std::int64_t heads, TransformerBlockOptions options)
    : TransformerBlock(nullptr, {}, width, heads, options) {}

TransformerBlock::TransformerBlock(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                                   TransformerBlockOptions options)
    : TransformerEncoderLayer(parent, name, width, heads,
                              {.dim_feedforward = options.feedforward > 0 ? options.feedforward : 4 * width,
                               .dropout = options.dropout,
                               .activation = TransformerActivation::gelu,
                               .norm_first = true,
                               .bias = options.bias,
                               .layer_norm_eps = options.eps}),
      is_causal_(options.is_causal) {}

Tensor TransformerBlock::forward(Tensor x) {
  return forward(std::move(x), {.is_causal = is_causal_});
}

TransformerDecoderLayer::TransformerDecoderLayer(std::int64_t width, std::int64_t heads,
                                                 TransformerLayerOptions options)
    : TransformerDecoderLayer(nullptr, {}, width, heads, options) {}

TransformerDecoderLayer::TransformerDecoderLayer(Module* parent, std::string_view name, std::int64_t width,
                                                 std::int64_t heads, TransformerLayerOptions options)
    : ModuleOf(parent, name),
      self_attn(this, "self_attn", width, heads, attention_of(options)),
      multihead_attn(this, "multihead_attn", width, heads, attention_of(options)),
      linear1(this, "linear1", width, options.dim_feedforward, {.bias = options.bias}),
      dropout(this, "dropout", options.dropout),
      linear2(this, "linear2", options.dim_feedforward, width, {.bias = options.bias}),
      norm1(this, "norm1", width, norm_of(options)),
      norm2(this, "norm2", width, norm_of(options)),
      norm3(this, "norm3", width, norm_of(options)),
      dropout1(this, "dropout1", options.dropout),
      dropout2(this, "dropout2", options.dropout),
      dropout3(this, "dropout3", options.dropout),
      options_(options) {}

Tensor TransformerDecoderLayer::forward(Tensor x, const Tensor& memory, const AttentionMasks& masks,
                                        const AttentionMasks& memory_masks) {
  const bool first = options_.norm_first;
  x = residual(x, norm1, first, [&](const Tensor& y) { return dropout1(self_attn(y, y, y, masks)); });
  x = residual(x, norm2, first,
               [&](const Tensor& y) { return dropout2(multihead_attn(y, memory, memory, memory_masks)); });
  return residual(x, norm3, first,
                  [&](const Tensor& y) { return dropout3(feed_forward(*this, options_.activation, y)); });
}

TransformerEncoder::TransformerEncoder(std::int64_t width, std::int64_t heads, int count,
                                       TransformerStackOptions options)
    : TransformerEncoder(nullptr, {}, width, heads, count, options) {}

TransformerEncoder::TransformerEncoder(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                                       int count, TransformerStackOptions options)
    : Module(parent, name) {
  check_count("TransformerEncoder", count);
  for (int i = 0; i < count; ++i) layers.add(width, heads, options.layer);
  if (options.norm) norm = std::make_unique<LayerNorm>(this, "norm", width, norm_of(options.layer));
}

Tensor TransformerEncoder::forward(Tensor x) {
  return forward(std::move(x), {});
}

Tensor TransformerEncoder::forward(Tensor x, const AttentionMasks& masks) {
  for (TransformerEncoderLayer& layer : layers) x = layer(x, masks);
  return norm ? (*norm)(x) : x;
}

TransformerDecoder::TransformerDecoder(std::int64_t width, std::int64_t heads, int count,
                                       TransformerStackOptions options)
    : TransformerDecoder(nullptr, {}, width, heads, count, options) {}

TransformerDecoder::TransformerDecoder(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                                       int count, TransformerStackOptions options)
    : ModuleOf(parent, name) {
  check_count("TransformerDecoder", count);
  for (int i = 0; i < count; ++i) layers.add(width, heads, options.layer);
  if (options.norm) norm = std::make_unique<LayerNorm>(this, "norm", width, norm_of(options.layer));
}

Tensor TransformerDecoder::forward(Tensor x, const Tensor& memory, const AttentionMasks& masks,
                                   const AttentionMasks& memory_masks) {
  for (TransformerDecoderLayer& layer : layers) x = layer(x, memory, masks, memory_masks);
  return norm ? (*norm)(x) : x;
}

Transformer::Transformer(std::int64_t width, std::int64_t heads, TransformerOptions options)
    : Transformer(nullptr, {}, width, heads, options) {}

Transformer::Transformer(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                         TransformerOptions options)
    : ModuleOf(parent, name),
      encoder(this, "encoder", width, heads, options.encoder_layers, {.layer = options.layer, .norm = true}),
      decoder(this, "decoder", width, heads, options.decoder_layers, {.layer = options.layer, .norm = true}) {
  for (const Tensor& parameter : parameters())
    if (parameter.dim() > 1) init::xavier_uniform_(parameter);
}

Tensor Transformer::forward(const Tensor& src, const Tensor& tgt, const TransformerMasks& masks) {
  return decoder(tgt, encoder(src, masks.src), masks.tgt, masks.memory);
}

Tensor Transformer::generate_square_subsequent_mask(std::int64_t length) {
  return triu(full({length, length}, -std::numeric_limits<double>::infinity()), 1);
}

}  // namespace lockstep::nn
