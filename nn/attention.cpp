#include "lockstep/nn/attention.h"

#include <cmath>
#include <utility>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/linear/linear.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {

MultiheadAttention::MultiheadAttention(std::int64_t width, std::int64_t heads, MultiheadAttentionOptions options)
    : MultiheadAttention(nullptr, {}, width, heads, options) {}

MultiheadAttention::MultiheadAttention(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                                       MultiheadAttentionOptions options)
    : Module(parent, name),
      in_proj_weight(this, "in_proj_weight", empty({3 * width, width})),
      in_proj_bias(this, "in_proj_bias", options.bias ? zeros({3 * width}) : Tensor()),
      out_proj(this, "out_proj", width, width, {.bias = options.bias}),
      heads_(heads),
      all_heads_(heads),
      options_(options) {
  LOCKSTEP_CHECK(heads > 0 && width > 0 && width % heads == 0,
                 "[nn::MultiheadAttention] expected a number of heads that divides the width {}, found {}", width,
                 heads);
  init::xavier_uniform_(in_proj_weight);
  if (options.bias) init::zeros_(out_proj.bias);
}

void MultiheadAttention::set_projection(Linear::Function project, std::int64_t heads, std::int64_t first) {
  LOCKSTEP_CHECK(heads > 0 && first >= 0 && first + heads <= all_heads_,
                 "[nn::MultiheadAttention] {} heads from number {} on are no part of {}", heads, first, all_heads_);
  project_ = std::move(project);
  heads_ = heads;
  first_head_ = first;
}

Tensor MultiheadAttention::forward(Tensor x) {
  const Tensor qkv = project_ ? project_(x, in_proj_weight, in_proj_bias) : linear(x, in_proj_weight, in_proj_bias);
  return out_proj(packed_attention(qkv, heads_, heads_,
                                   {.dropout_p = is_training() ? options_.dropout : 0.0,
                                    .is_causal = options_.is_causal,
                                    .first_head = first_head_,
                                    .all_heads = all_heads_}));
}

// Queries, keys or values of x, apart by heads.
Tensor MultiheadAttention::project(const Tensor& x, std::int64_t part) const {
  const std::int64_t width = in_proj_weight.size(1);
  const Tensor bias = in_proj_bias.defined() ? in_proj_bias.narrow(0, part * width, width) : Tensor();
  const Tensor rows = linear(x, in_proj_weight.narrow(0, part * width, width), bias);
  return rows.view({x.size(0), x.size(1), heads_, width / heads_}).transpose(1, 2);
}

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask) {
  LOCKSTEP_CHECK(!project_, "[nn::MultiheadAttention] heads that are divided over ranks compute self-attention alone");
  const Tensor out =
      scaled_dot_product_attention(project(query, 0), project(key, 1), project(value, 2),
                                   {.attn_mask = mask, .dropout_p = is_training() ? options_.dropout : 0.0});
  return out_proj(out.transpose(1, 2).reshape({query.size(0), query.size(1), in_proj_weight.size(1)}));
}

TransformerBlock::TransformerBlock(std::int64_t width, std::int64_t heads, TransformerBlockOptions options)
    : TransformerBlock(nullptr, {}, width, heads, options) {}

TransformerBlock::TransformerBlock(Module* parent, std::string_view name, std::int64_t width, std::int64_t heads,
                                   TransformerBlockOptions options)
    : Module(parent, name),
      self_attn(this, "self_attn", width, heads,
                {.dropout = options.dropout, .bias = options.bias, .is_causal = options.is_causal}),
      linear1(this, "linear1", width, options.feedforward > 0 ? options.feedforward : 4 * width,
              {.bias = options.bias}),
      dropout(this, "dropout", options.dropout),
      linear2(this, "linear2", options.feedforward > 0 ? options.feedforward : 4 * width, width,
              {.bias = options.bias}),
      norm1(this, "norm1", width, {.eps = options.eps, .bias = options.bias}),
      norm2(this, "norm2", width, {.eps = options.eps, .bias = options.bias}),
      dropout1(this, "dropout1", options.dropout),
      dropout2(this, "dropout2", options.dropout) {}

Tensor TransformerBlock::forward(Tensor x) {
  x = x + dropout1(self_attn(norm1(x)));
  return x + dropout2(linear2(dropout(gelu(linear1(norm2(x))))));
}

RotaryAngles rotary_angles(std::int64_t length, std::int64_t width, double base, std::int64_t first) {
  LOCKSTEP_CHECK(width > 0 && width % 2 == 0 && length >= 0,
                 "[rotary_angles] expected an even width above 0, found {}, and a length of at least 0, found {}",
                 width, length);
  RotaryAngles angles{empty({length, width / 2}), empty({length, width / 2})};
  float *cosine = angles.cosine.data<float>(), *sine = angles.sine.data<float>();
  for (std::int64_t t = 0; t < length; ++t)
    for (std::int64_t i = 0; i < width / 2; ++i) {
      const double frequency = math::portable_pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width));
      const double angle = static_cast<double>(first + t) * frequency;
      *cosine++ = static_cast<float>(math::portable_cos(angle));
      *sine++ = static_cast<float>(math::portable_sin(angle));
    }
  return angles;
}

}  // namespace lockstep::nn
