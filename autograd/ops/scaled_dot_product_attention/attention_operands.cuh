#pragma once

// What the attention kernels for CUDA devices share. For .cu files only.

#include <cmath>
#include <cstdint>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"

namespace lockstep::attention_cuda {

using cuda::from_element;
using cuda::to_element;
using detail::AttentionPlan;

/// A tensor [N, H, rows, columns] whose rows are dense.
template <typename T>
struct Heads {
  T* data;
  std::int64_t batch_stride, head_stride, stride;

  explicit Heads(const Tensor& t)
      : data(t.data<T>()), batch_stride(t.strides()[0]), head_stride(t.strides()[1]), stride(t.strides()[2]) {}
  __device__ T* row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return data + batch * batch_stride + head * head_stride + row * stride;
  }
};

template <typename C>
struct Mask {
  const void* data = nullptr;
  bool is_bool = false;
  std::int64_t strides[4] = {};

  explicit Mask(const Tensor& mask) {
    if (!mask.defined()) return;
    data = mask.raw_data();
    is_bool = mask.dtype() == kBool;
    for (int d = 0; d < 4; ++d) strides[d] = mask.strides()[d];
  }
  __device__ C apply(std::int64_t n, std::int64_t h, std::int64_t l, std::int64_t s, C score) const {
    if (!data) return score;
    const std::int64_t at = n * strides[0] + h * strides[1] + l * strides[2] + s * strides[3];
    if (is_bool) return static_cast<const bool*>(data)[at] ? score : static_cast<C>(-INFINITY);
    return score + static_cast<const C*>(data)[at];
  }
};

struct Sizes {
  std::int64_t batch, heads, group, queries, keys, width, value_width;
};

/// What all kernels know.
template <typename T, typename C>
struct Attention {
  Sizes sizes;
  Heads<T> query, key, value;
  Mask<C> mask;
  C scale;
  bool causal, dropout;
  philox::KeySource source;
  std::uint32_t threshold;
  C keep_scale;
  std::int64_t first_head, all_heads;

  Attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& m, const AttentionPlan& plan)
      : sizes{q.size(0), q.size(1), q.size(1) / k.size(1), q.size(2), k.size(2), q.size(3), v.size(3)},
        query(q),
        key(k),
        value(v),
        mask(m),
        scale(static_cast<C>(plan.scale)),
        causal(plan.causal),
        dropout(plan.dropout),
        source(plan.key),
        threshold(plan.threshold),
        keep_scale(static_cast<C>(plan.keep_scale)),
        first_head(plan.first_head),
        all_heads(plan.all_heads == 0 ? q.size(1) : plan.all_heads) {}

  __device__ std::int64_t number(std::int64_t n, std::int64_t h, std::int64_t l) const {
    return (n * sizes.heads + h) * sizes.queries + l;
  }
  __device__ C score(std::int64_t n, std::int64_t h, std::int64_t l, std::int64_t s) const {
    if (causal && s > l) return static_cast<C>(-INFINITY);
    const T *q = query.row(n, h, l), *k = key.row(n, h / sizes.group, s);
    C sum = 0;
    for (std::int64_t d = 0; d < sizes.width; ++d) sum = std::fma(from_element<C>(q[d]), from_element<C>(k[d]), sum);
    return mask.apply(n, h, l, s, sum * scale);
  }
  __device__ C keep(philox::Key dropout_key, std::int64_t n, std::int64_t h, std::int64_t l, std::int64_t s) const {
    if (!dropout) return C(1);
    const auto element =
        static_cast<std::uint64_t>(((n * all_heads + first_head + h) * sizes.queries + l) * sizes.keys + s);
    return philox::word_at(dropout_key, element) >= threshold ? keep_scale : C(0);
  }
  /// grad . value of a pair.
  __device__ C product(const T* grad, std::int64_t n, std::int64_t h, std::int64_t s) const {
    const T* v = value.row(n, h / sizes.group, s);
    C sum = 0;
    for (std::int64_t d = 0; d < sizes.value_width; ++d)
      sum = std::fma(from_element<C>(grad[d]), from_element<C>(v[d]), sum);
    return sum;
  }
};

template <typename C>
struct Larger {  // a NaN shows in the sum
  __device__ C operator()(C a, C b) const { return a > b ? a : b; }
};

}  // namespace lockstep::attention_cuda
