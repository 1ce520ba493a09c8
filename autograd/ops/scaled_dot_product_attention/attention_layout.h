#pragma once

// Where results of attention lie in memory. For .cpp files only.

#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// An empty tensor [N, H, L, E] that lies as `like` [N, H, L, *] does: if the heads of a position are neighbours there,
/// as those that were cut out of a linear layer's result, they are so here, and joining them again copies nothing.
/// Contiguous else, and for other numbers of dimensions.
inline Tensor empty_as(const Shape& sizes, const Tensor& like) {
  const bool by_position = sizes.dim() == 4 && like.dim() == 4 && like.strides()[1] < like.strides()[2];
  if (!by_position) return empty(sizes, options_of(like));
  const std::int64_t row = sizes[1] * sizes[3];
  return empty({sizes[0], sizes[2], sizes[1], sizes[3]}, options_of(like))
      .as_strided(sizes, {sizes[2] * row, sizes[3], row, 1}, 0);
}

/// Queries, keys and values, or their gradients.
struct Parts {
  Tensor query, key, value;
};

/// Of qkv [N, T, (heads + 2 * kv_heads) * D]: views [N, heads or kv_heads, T, D].
inline Parts parts_of(const Tensor& qkv, std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t batch = qkv.size(0), length = qkv.size(1), width = qkv.size(2);
  const std::int64_t d = width / (heads + 2 * kv_heads);
  const auto part = [&](std::int64_t first, std::int64_t count) {
    return qkv.as_strided({batch, count, length, d}, {length * width, d, width, 1}, qkv.offset() + first * d);
  };
  return {part(0, heads), part(heads, kv_heads), part(heads + kv_heads, kv_heads)};
}

/// Whether they are parts_of() one tensor.
inline bool are_parts(const Parts& p) {
  const Tensor &q = p.query, &k = p.key, &v = p.value;
  if (q.dim() != 4 || k.dim() != 4 || q.numel() == 0 || k.sizes() != v.sizes() || q.size(0) != k.size(0) ||
      q.size(2) != k.size(2) || q.size(3) != k.size(3) || k.storage() != q.storage() || v.storage() != q.storage())
    return false;
  const std::int64_t d = q.size(3), width = d * (q.size(1) + 2 * k.size(1));
  const Shape strides{q.size(2) * width, d, width, 1};
  return q.strides() == strides && k.strides() == strides && v.strides() == strides &&
         k.offset() == q.offset() + d * q.size(1) && v.offset() == k.offset() + d * k.size(1);
}

}  // namespace lockstep::detail
