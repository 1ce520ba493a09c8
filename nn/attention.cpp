#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/linear/linear.h"
#include "lockstep/autograd/ops/scaled_dot_product_attention/scaled_dot_product_attention.h"
#include "lockstep/autograd/ops/tril/tril.h"
#include "lockstep/core/check.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/init.h"
#include "lockstep/nn/transformer.h"

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

void MultiheadAttention::set_projection(Linear::Function project, Linear::Function project_one, std::int64_t heads,
                                        std::int64_t first, std::int64_t lengths) {
  LOCKSTEP_CHECK(heads > 0 && first >= 0 && first + heads <= all_heads_,
                 "[nn::MultiheadAttention] {} heads from number {} on are no part of {}", heads, first, all_heads_);
  project_ = std::move(project);
  project_one_ = std::move(project_one);
  heads_ = heads;
  first_head_ = first;
  lengths_ = lengths;
}

Tensor MultiheadAttention::attend_to_itself(const Tensor& x, const Tensor& mask, bool is_causal) {
  const Tensor qkv = project_ ? project_(x, in_proj_weight, in_proj_bias) : linear(x, in_proj_weight, in_proj_bias);
  return out_proj(packed_attention(qkv, heads_, heads_,
                                   {.attn_mask = mask,
                                    .dropout_p = is_training() ? options_.dropout : 0.0,
                                    .is_causal = is_causal,
                                    .first_head = first_head_,
                                    .all_heads = all_heads_}));
}

Tensor MultiheadAttention::forward(Tensor x) {
  const std::int64_t width = in_proj_weight.size(1);
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 3 || x.dim() == 2) && x.size(-1) == width,
                 "[nn::MultiheadAttention] expected x of sizes [N, T, {}] or [T, {}], found {}", width, width,
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  if (x.dim() == 2) return attend_to_itself(x.unsqueeze(0), {}, options_.is_causal).squeeze(0);
  return attend_to_itself(x, {}, options_.is_causal);
}

// Queries, keys or values of x, apart by heads.
Tensor MultiheadAttention::project(const Tensor& x, std::int64_t part) const {
  const std::int64_t outputs = in_proj_weight.size(0) / 3;  // of the heads whose weights are here
  const Tensor weight = in_proj_weight.narrow(0, part * outputs, outputs);
  const Tensor bias = in_proj_bias.defined() ? in_proj_bias.narrow(0, part * outputs, outputs) : Tensor();
  const Tensor rows = project_one_ ? project_one_(x, weight, bias) : linear(x, weight, bias);
  return rows.view({rows.size(0), rows.size(1), heads_, rows.size(2) / heads_}).transpose(1, 2);
}

namespace {

// The masks as one that scaled_dot_product_attention() takes; undefined if nothing is left out or is_causal says it
// all. Of the `heads` from number `first` on of `all_heads`, and `n` times l queries and s keys.
Tensor mask_of(const AttentionMasks& masks, std::int64_t heads, std::int64_t first, std::int64_t all_heads,
               std::int64_t n, std::int64_t l, std::int64_t s, Device device) {
  Tensor mask = masks.attn_mask, seen;
  if (mask.defined()) {
    if (mask.dim() == 3 && mask.size(0) == n * all_heads)
      mask = mask.view({n, all_heads, mask.size(1), mask.size(2)}).narrow(1, first, heads);
    else if (mask.dim() >= 3 && mask.dim() <= 4 && mask.size(-3) == all_heads && heads != all_heads)
      mask = mask.narrow(-3, first, heads);  // one for each head, for all samples or each
    LOCKSTEP_CHECK(mask.dim() >= 2 && mask.size(-1) == s && (mask.size(-2) == l || mask.size(-2) == 1),
                   "[nn::MultiheadAttention] expected an attn_mask of sizes [{}, {}] or [{}, {}, {}], found {}", l, s,
                   n * all_heads, l, s, to_string(masks.attn_mask.sizes()));
    if (mask.dtype() == kBool) seen = logical_not(mask);
  }
  if (masks.key_padding_mask.defined()) {
    const Tensor& padding = masks.key_padding_mask;
    LOCKSTEP_CHECK(padding.dtype() == kBool && padding.sizes() == Shape({n, s}),
                   "[nn::MultiheadAttention] expected a bool key_padding_mask of sizes [{}, {}], found {} {}", n, s,
                   name(padding.dtype()), to_string(padding.sizes()));
    const Tensor keys = logical_not(padding).view({n, 1, 1, s});
    seen = seen.defined() ? logical_and(seen, keys) : keys;
  }
  if (masks.is_causal && (mask.defined() || seen.defined())) {
    const Tensor before = tril(ones({l, s}, {.dtype = kBool, .device = device}));
    seen = seen.defined() ? logical_and(seen, before) : before;
  }
  if (!mask.defined() || mask.dtype() == kBool) return seen;
  return seen.defined() ? where(seen, mask, -std::numeric_limits<double>::infinity()) : mask;
}

}  // namespace

Tensor MultiheadAttention::forward(const Tensor& query, const Tensor& key, const Tensor& value,
                                   const AttentionMasks& masks) {
  const std::int64_t width = in_proj_weight.size(1);
  for (const Tensor* x : {&query, &key, &value})
    LOCKSTEP_CHECK(x->defined() && (x->dim() == 3 || x->dim() == 2) && x->dim() == query.dim() &&
                       x->size(-1) == width && (x->dim() == 2 || x->size(0) == query.size(0)),
                   "[nn::MultiheadAttention] expected queries, keys and values of sizes [N, length, {}], or all of "
                   "[length, {}], found {}",
                   width, width, x->defined() ? to_string(x->sizes()) : "an undefined tensor");
  if (query.dim() == 2) {
    const Tensor q = query.unsqueeze(0), k = key.is_same(query) ? q : key.unsqueeze(0);
    AttentionMasks of_one = masks;
    if (masks.key_padding_mask.defined() && masks.key_padding_mask.dim() == 1)
      of_one.key_padding_mask = masks.key_padding_mask.unsqueeze(0);
    return forward(q, k, value.is_same(query) ? q : value.unsqueeze(0), of_one).squeeze(0);
  }
  const Tensor mask = mask_of(masks, heads_, first_head_, all_heads_, query.size(0), query.size(1) * lengths_,
                              key.size(1) * lengths_, query.device());
  const bool is_causal = masks.is_causal && !mask.defined();
  if (key.is_same(query) && value.is_same(query)) return attend_to_itself(query, mask, is_causal);
  const Tensor out = scaled_dot_product_attention(project(query, 0), project(key, 1), project(value, 2),
                                                  {.attn_mask = mask,
                                                   .dropout_p = is_training() ? options_.dropout : 0.0,
                                                   .is_causal = is_causal,
                                                   .first_head = first_head_,
                                                   .all_heads = all_heads_});
  return out_proj(out.transpose(1, 2).reshape({out.size(0), out.size(2), -1}));
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
