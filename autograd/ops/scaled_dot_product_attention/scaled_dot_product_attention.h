#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of scaled_dot_product_attention() and packed_attention().
struct AttentionOptions {
  /// Broadcasts to [..., L, S]: bool, false where a key is left out; or floating point, added to the scores. A query
  /// without any key gives 0.
  Tensor attn_mask = {};
  double dropout_p = 0.0;                      ///< probability with which a weight is dropped; 0 outside of training
  bool is_causal = false;                      ///< query i sees keys 0 ... i; not together with attn_mask
  std::optional<double> scale = std::nullopt;  ///< of the scores; 1 / sqrt(E) if not given
  /// Where query's heads are a part of a layer's, those from first_head on of all_heads: dropout then drops what it
  /// drops of all. 0: they are all.
  std::int64_t first_head = 0, all_heads = 0;
  bool enable_gqa = false;  ///< query may have a multiple of key's heads (dimension -3), which share keys and values
};

/// softmax(query * key^T * scale + mask) * value for query [..., L, E], key [..., S, E] and value [..., S, Ev]: gives
/// [..., L, Ev]. Vaswani et al., "Attention is all you need" (2017); semantics of
/// torch.nn.functional.scaled_dot_product_attention. Leading dimensions broadcast.
///
/// The scores are computed a tile at a time, forward and backward, and never held as a whole (Milakov and Gimelshein,
/// "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022); with is_causal, tiles above
/// the diagonal are left out. Only a mask that requires gradients makes the L x S weights, which its gradient has too.
/// Dropout draws one key from RandomStream::dropout, and drops the weights that dropout() would of a tensor [..., L,
/// S]. Floating point; float16 and bfloat16 are computed in float. Throws Error for shapes, dtypes or devices that do
/// not fit.
Tensor scaled_dot_product_attention(const Tensor& query, const Tensor& key, const Tensor& value,
                                    const AttentionOptions& options = {});

/// Self-attention of what one projection has made: qkv [N, T, (heads + 2 * kv_heads) * D] holds `heads` queries, then
/// kv_heads keys and as many values of each position, D elements each. Gives [N, T, heads * D], as
/// scaled_dot_product_attention() of the parts would, without copies between the layouts. kv_heads 0: as many as heads.
Tensor packed_attention(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads = 0,
                        const AttentionOptions& options = {});

}  // namespace lockstep
