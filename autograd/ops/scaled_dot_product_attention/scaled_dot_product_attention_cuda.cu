#include <cmath>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep::detail {
namespace {

using cuda::from_element;
using cuda::kThreads;
using cuda::to_element;

// Note [Attention on CUDA]
// A block of threads takes one query (forward, and its gradient) or one key (the gradients of key and value) and goes
// through the other side kThreads at a time: first a thread computes the weight of one pair, then it adds the weighted
// rows up in one column. Sums are in the order of rows, so the same bits come out each time. Rows wider than kThreads
// are computed in passes, a strip of columns each.

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

template <typename T, typename C>
__global__ void forward_kernel(Attention<T, C> a, Heads<T> out, C* log_sums) {
  __shared__ C weights[kThreads];
  const Sizes z = a.sizes;
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t item = blockIdx.x; item < z.batch * z.heads * z.queries; item += gridDim.x) {
    const std::int64_t l = item % z.queries, h = item / z.queries % z.heads, n = item / z.queries / z.heads;
    const std::int64_t limit = a.causal && l + 1 < z.keys ? l + 1 : z.keys;
    for (std::int64_t strip = 0; strip < z.value_width; strip += kThreads) {
      const std::int64_t column = strip + thread;
      C top = static_cast<C>(-INFINITY), sum = 0, result = 0;
      for (std::int64_t first = 0; first < limit; first += kThreads) {
        const std::int64_t s = first + thread;
        const C score = s < limit ? a.score(n, h, l, s) : static_cast<C>(-INFINITY);
        const C highest = Larger<C>()(cuda::block_reduce(score, Larger<C>()), top);
        const C shift = highest == static_cast<C>(-INFINITY) ? C(0) : highest;
        const C weight = s < limit ? std::exp(score - shift) : C(0);
        const C factor = top == static_cast<C>(-INFINITY) ? C(0) : std::exp(top - shift);
        sum = sum * factor + cuda::block_sum(weight);
        top = highest;
        __syncthreads();
        weights[thread] = s < limit ? weight * a.keep(dropout_key, n, h, l, s) : C(0);
        __syncthreads();
        if (column < z.value_width) {
          result *= factor;
          const std::int64_t count = limit - first < kThreads ? limit - first : kThreads;
          for (std::int64_t j = 0; j < count; ++j)
            result = std::fma(weights[j], from_element<C>(a.value.row(n, h / z.group, first + j)[column]), result);
        }
      }
      const bool none = sum == C(0);
      if (column < z.value_width) out.row(n, h, l)[column] = to_element<T>(none ? C(0) : result / sum);
      if (strip == 0 && thread == 0)
        log_sums[a.number(n, h, l)] = none ? static_cast<C>(INFINITY) : top + std::log(sum);
    }
  }
}

/// deltas[row] = sum(grad * out) of each query.
template <typename T, typename C>
__global__ void delta_kernel(Sizes z, Heads<T> out, Heads<T> grad, C* deltas) {
  for (std::int64_t item = blockIdx.x; item < z.batch * z.heads * z.queries; item += gridDim.x) {
    const std::int64_t l = item % z.queries, h = item / z.queries % z.heads, n = item / z.queries / z.heads;
    C sum = 0;
    for (std::int64_t d = threadIdx.x; d < z.value_width; d += kThreads)
      sum += from_element<C>(grad.row(n, h, l)[d]) * from_element<C>(out.row(n, h, l)[d]);
    sum = cuda::block_sum(sum);
    if (threadIdx.x == 0) deltas[item] = sum;
  }
}

template <typename T, typename C>
__global__ void query_kernel(Attention<T, C> a, Heads<T> grad, const C* log_sums, const C* deltas,
                             Heads<T> grad_query) {
  __shared__ C slopes[kThreads];
  const Sizes z = a.sizes;
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const int thread = static_cast<int>(threadIdx.x);
  for (std::int64_t item = blockIdx.x; item < z.batch * z.heads * z.queries; item += gridDim.x) {
    const std::int64_t l = item % z.queries, h = item / z.queries % z.heads, n = item / z.queries / z.heads;
    const std::int64_t limit = a.causal && l + 1 < z.keys ? l + 1 : z.keys;
    for (std::int64_t strip = 0; strip < z.width; strip += kThreads) {
      const std::int64_t column = strip + thread;
      C result = 0;
      for (std::int64_t first = 0; first < limit; first += kThreads) {
        const std::int64_t s = first + thread;
        C slope = 0;
        if (s < limit) {
          const C weight = std::exp(a.score(n, h, l, s) - log_sums[item]);
          slope = weight * (a.product(grad.row(n, h, l), n, h, s) * a.keep(dropout_key, n, h, l, s) - deltas[item]);
        }
        __syncthreads();
        slopes[thread] = slope * a.scale;
        __syncthreads();
        if (column < z.width) {
          const std::int64_t count = limit - first < kThreads ? limit - first : kThreads;
          for (std::int64_t j = 0; j < count; ++j)
            result = std::fma(slopes[j], from_element<C>(a.key.row(n, h / z.group, first + j)[column]), result);
        }
      }
      if (column < z.width) grad_query.row(n, h, l)[column] = to_element<T>(result);
    }
  }
}

template <typename T, typename C>
__global__ void key_kernel(Attention<T, C> a, Heads<T> grad, const C* log_sums, const C* deltas, Heads<T> grad_key,
                           Heads<T> grad_value) {
  __shared__ C weights[kThreads];
  __shared__ C slopes[kThreads];
  const Sizes z = a.sizes;
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t kv_heads = z.heads / z.group, widest = z.width > z.value_width ? z.width : z.value_width;
  for (std::int64_t item = blockIdx.x; item < z.batch * kv_heads * z.keys; item += gridDim.x) {
    const std::int64_t s = item % z.keys, g = item / z.keys % kv_heads, n = item / z.keys / kv_heads;
    for (std::int64_t strip = 0; strip < widest; strip += kThreads) {
      const std::int64_t column = strip + thread;
      C to_key = 0, to_value = 0;
      for (std::int64_t h = g * z.group; h < (g + 1) * z.group; ++h) {
        if (a.causal) {  // earlier queries count only if they are not numbers
          C broken = 0;
          for (std::int64_t l = thread; l < s && l < z.queries; l += kThreads) {
            const C log_sum = log_sums[a.number(n, h, l)];
            if (log_sum != log_sum) broken = log_sum;
          }
          broken = cuda::block_sum(broken);
          to_key += broken;
          to_value += broken;
        }
        for (std::int64_t first = a.causal ? s : 0; first < z.queries; first += kThreads) {
          const std::int64_t l = first + thread;
          C weight = 0, slope = 0, keep = 0;
          if (l < z.queries) {
            const std::int64_t row = a.number(n, h, l);
            weight = std::exp(a.score(n, h, l, s) - log_sums[row]);
            keep = a.keep(dropout_key, n, h, l, s);
            slope = weight * (a.product(grad.row(n, h, l), n, h, s) * keep - deltas[row]);
          }
          __syncthreads();
          weights[thread] = weight * keep;
          slopes[thread] = slope * a.scale;
          __syncthreads();
          const std::int64_t count = z.queries - first < kThreads ? z.queries - first : kThreads;
          for (std::int64_t j = 0; j < count; ++j) {
            if (column < z.width)
              to_key = std::fma(slopes[j], from_element<C>(a.query.row(n, h, first + j)[column]), to_key);
            if (column < z.value_width)
              to_value = std::fma(weights[j], from_element<C>(grad.row(n, h, first + j)[column]), to_value);
          }
        }
      }
      if (column < z.width) grad_key.row(n, g, s)[column] = to_element<T>(to_key);
      if (column < z.value_width) grad_value.row(n, g, s)[column] = to_element<T>(to_value);
    }
  }
}

}  // namespace

void attention_cuda(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, const Tensor& out,
                    const Tensor& log_sums, const AttentionPlan& plan) {
  cuda::require_not_portable("scaled_dot_product_attention");
  const cuda::Launch launch(query);
  dispatch_floating(query.dtype(), "scaled_dot_product_attention", [&]<typename T>() {
    using C = compute_t<T>;
    launch(forward_kernel<T, C>, cuda::blocks_for(log_sums.numel(), 1), kThreads,
           Attention<T, C>(query, key, value, mask, plan), Heads<T>(out), log_sums.data<C>());
  });
}

void attention_backward_cuda(const AttentionSaved& saved, const Tensor& grad_query, const Tensor& grad_key,
                             const Tensor& grad_value, const AttentionPlan& plan) {
  const cuda::Launch launch(saved.query);
  const Tensor deltas = empty(saved.log_sums.sizes(), options_of(saved.log_sums));
  dispatch_floating(saved.query.dtype(), "scaled_dot_product_attention backward", [&]<typename T>() {
    using C = compute_t<T>;
    const Attention<T, C> attention(saved.query, saved.key, saved.value, saved.mask, plan);
    const Heads<T> grad(saved.grad);
    const unsigned rows = cuda::blocks_for(deltas.numel(), 1);
    const std::int64_t keys = saved.key.size(0) * saved.key.size(1) * saved.key.size(2);
    launch(delta_kernel<T, C>, rows, kThreads, attention.sizes, Heads<T>(saved.out), grad, deltas.data<C>());
    launch(query_kernel<T, C>, rows, kThreads, attention, grad, saved.log_sums.data<C>(), deltas.data<C>(),
           Heads<T>(grad_query));
    launch(key_kernel<T, C>, cuda::blocks_for(keys, 1), kThreads, attention, grad, saved.log_sums.data<C>(),
           deltas.data<C>(), Heads<T>(grad_key), Heads<T>(grad_value));
  });
}

}  // namespace lockstep::detail
