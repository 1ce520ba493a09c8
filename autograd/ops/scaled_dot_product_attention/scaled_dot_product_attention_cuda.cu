#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <type_traits>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_operands.cuh"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_tiled_kernels.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep::detail {
namespace {

using namespace attention_cuda;
using cuda::kThreads;

// Note [Attention on CUDA]
// Rows of up to 128 go by tiles on tensor cores (Note [Tiles of attention on CUDA]); float64 and wider rows as follows.
// A block of threads takes one query (forward, and its gradient) or one key (the gradients of key and value) and goes
// through the other side kThreads at a time: first a thread computes the weight of one pair, then it adds the weighted
// rows up in one column. Sums are in the order of rows, so the same bits come out each time. Rows wider than kThreads
// are computed in passes, a strip of columns each.

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

/// Note [Tiles of attention on CUDA]: whether rows are narrow enough, and whether 16 bytes of them may be taken at a
/// time.
bool fits_tiles(const Tensor& query, const Tensor& value) {
  const std::int64_t most = std::int64_t{1} << 30;  // rows are counted in 32 bits
  const std::int64_t rows = std::max(query.size(1) * query.size(2), value.size(1) * value.size(2));
  return query.size(3) <= kWidestTile && value.size(3) <= kWidestTile && query.size(0) * rows < most;
}
template <typename T>
bool in_packs(std::initializer_list<const Tensor*> tensors) {
  const std::int64_t pack = 16 / static_cast<std::int64_t>(sizeof(T));
  return std::ranges::all_of(tensors, [pack](const Tensor* t) {
    const Shape& strides = t->strides();
    return cuda::aligned(t->raw_data(), 16) && t->size(3) % pack == 0 && strides[0] % pack == 0 &&
           strides[1] % pack == 0 && strides[2] % pack == 0;
  });
}

/// Calls f.operator()<width, products>() for tiles that hold rows of these widths.
template <typename T, typename F>
void with_tiles(const Tensor& query, const Tensor& value, F&& f) {
  using enum cuda::FloatProducts;
  const auto with_width = [&]<int kWidth>() {
    if constexpr (std::is_same_v<T, float>) {
      if (!cuda::allow_tf32()) return f.template operator()<kWidth, split>();
    }
    f.template operator()<kWidth, tf32>();
  };
  if (query.size(3) <= 64 && value.size(3) <= 64) return with_width.template operator()<64>();
  with_width.template operator()<kWidestTile>();
}

}  // namespace

void attention_cuda(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask, const Tensor& out,
                    const Tensor& log_sums, const AttentionPlan& plan) {
  cuda::require_not_portable("scaled_dot_product_attention");
  const cuda::Launch launch(query);
  dispatch_floating(query.dtype(), "scaled_dot_product_attention", [&]<typename T>() {
    using C = compute_t<T>;
    const Attention<T, C> attention(query, key, value, mask, plan);
    if constexpr (std::is_same_v<C, float>) {
      if (fits_tiles(query, value)) {
        const std::int64_t tiles = Owned::count(query.size(0), query.size(1), query.size(2));
        return with_tiles<T>(query, value, [&]<int kWidth, cuda::FloatProducts kHow>() {
          launch(tiled_forward_kernel<T, kWidth, kHow>, cuda::blocks_for(tiles, 1), kTileThreads, attention,
                 Heads<T>(out), log_sums.data<C>(), in_packs<T>({&query, &key, &value, &out}));
        });
      }
    }
    launch(forward_kernel<T, C>, cuda::blocks_for(log_sums.numel(), 1), kThreads, attention, Heads<T>(out),
           log_sums.data<C>());
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
    if constexpr (std::is_same_v<C, float>) {
      if (fits_tiles(saved.query, saved.value)) {
        const auto tiles = [](const Tensor& t) {
          return cuda::blocks_for(Owned::count(t.size(0), t.size(1), t.size(2)), 1);
        };
        const bool packs =
            in_packs<T>({&saved.query, &saved.key, &saved.value, &saved.grad, &grad_query, &grad_key, &grad_value});
        launch(row_delta_kernel<T>, cuda::blocks_for(deltas.numel(), kThreads / kDeltaLanes), kThreads, attention.sizes,
               Heads<T>(saved.out), grad, deltas.data<C>(), in_packs<T>({&saved.out, &saved.grad}));
        return with_tiles<T>(saved.query, saved.value, [&]<int kWidth, cuda::FloatProducts kHow>() {
          launch(tiled_query_kernel<T, kWidth, kHow>, tiles(saved.query), kTileThreads, attention, grad,
                 saved.log_sums.data<C>(), deltas.data<C>(), Heads<T>(grad_query), packs);
          launch(tiled_key_kernel<T, kWidth, kHow>, tiles(saved.key), kTileThreads, attention, grad,
                 saved.log_sums.data<C>(), deltas.data<C>(), Heads<T>(grad_key), Heads<T>(grad_value), packs);
        });
      }
    }
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
