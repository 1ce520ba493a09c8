#include "apps/gpt/key_value_cache.h"

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::gpt {

KeyValueCache::KeyValueCache(const Config& config, std::int64_t batch, Device device) {
  const Shape sizes{batch, config.kv_heads, config.context, config.head_width};
  for (std::int64_t i = 0; i < config.layers; ++i)
    layers_.push_back({empty(sizes, {.device = device}), empty(sizes, {.device = device})});
}

std::pair<Tensor, Tensor> KeyValueCache::append(std::int64_t layer, const Tensor& key, const Tensor& value) {
  const NoGradGuard values_only;
  const std::int64_t count = key.size(2);
  LOCKSTEP_CHECK(length_ + count <= capacity(), "[KeyValueCache] {} positions are held, {} more do not fit into {}",
                 length_, count, capacity());
  Layer& held = layers_.at(static_cast<std::size_t>(layer));
  copy_values(key, held.key.narrow(2, length_, count));
  copy_values(value, held.value.narrow(2, length_, count));
  return {held.key.narrow(2, 0, length_ + count), held.value.narrow(2, 0, length_ + count)};
}

Tensor attend(const Tensor& query, const Tensor& key, const Tensor& value, CacheSlot slot, double dropout) {
  const std::int64_t count = query.size(2);
  AttentionOptions options{.dropout_p = dropout, .is_causal = true, .enable_gqa = true};
  Tensor keys = key, values = value;
  if (slot.cache) {
    const std::int64_t before = slot.cache->length();
    std::tie(keys, values) = slot.cache->append(slot.layer, key, value);
    options.is_causal = before == 0;
    if (before > 0 && count > 1)
      options.attn_mask = tril(ones({count, before + count}, {.dtype = kBool, .device = query.device()}), before);
  }
  const Tensor out = scaled_dot_product_attention(query, keys, values, options);
  return out.transpose(1, 2).reshape({query.size(0), count, query.size(1) * value.size(3)});
}

}  // namespace lockstep::gpt
