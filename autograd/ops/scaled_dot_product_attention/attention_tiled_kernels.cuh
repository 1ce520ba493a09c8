#pragma once

// Attention on CUDA devices by tiles on tensor cores. For .cu files only.

#include <cmath>
#include <cstdint>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_operands.cuh"
#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_tile.cuh"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/cuda/tensor_core.cuh"

namespace lockstep::attention_cuda {

// Note [Tiles of attention on CUDA]
// A block of four warps owns 64 queries (forward, and their gradient) or 64 keys (the gradients of key and value), a
// warp 16 of them, and goes through the other side in tiles that lie in shared memory. A tile of scores is a product of
// fragments (Note [Fragments]); the weights made of it are, where they lie, the left factor of the next product, as in
// Dao, "FlashAttention-2" (2023). Backward computes the scores twice, once for queries and once for keys, so that every
// sum has one owner: the same bits come out each time, without atomic additions. float is multiplied in three parts,
// unless TF32 is allowed. Pairs of a tile that do not see each other have weight 0, so what is not finite in one of
// them becomes a NaN in the other, as in PyTorch's kernels; tiles of which no pair does are left out.

/// Blocks that a multiprocessor should have room for: what that leaves of registers is enough.
template <typename T, int kWidth>
inline constexpr int kBlocks = sizeof(T) == 2 && kWidth == 64 ? 3 : 2;

/// Of half types the weights are rounded to their mantissa anyway.
template <typename T>
__device__ inline float exponential(float x) {
#if defined(__CUDACC__)
  if constexpr (!std::is_same_v<T, float>) return __expf(x);
#endif
  return std::exp(x);
}

/// Whether queries l.. and keys s.. all see each other, without a mask.
template <typename T>
__device__ inline bool all_plain(const Attention<T, float>& a, int l, int queries, int s, int keys) {
  return !a.mask.data && l + queries <= a.sizes.queries && s + keys <= a.sizes.keys && (!a.causal || s + keys <= l + 1);
}

/// body(value, query, key) for what a lane holds of a tile of pairs. The block owns queries or keys: a lane's first
/// pair is of owned row `own` and of row `other` of the tile's side.
template <bool kOwnsQueries, int kCount, typename Body>
__device__ inline void for_pairs(float (&values)[kCount][4], int own, int other, Body&& body) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int owned = own + i / 2 * 8, of_tile = other + 8 * j + i % 2;
      body(values[j][i], kOwnsQueries ? owned : of_tile, kOwnsQueries ? of_tile : owned);
    }
  }
}

/// Scores of products: scaled, masked, and -infinity where there is no such pair.
template <bool kOwnsQueries, typename T, int kCount>
__device__ inline void finish_scores(float (&scores)[kCount][4], const Attention<T, float>& a, int n, int h, int own,
                                     int other, bool plain) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] *= a.scale;
  }
  // Apart from the loop above: its code is long, and most tiles go round it.
  if (plain) return;
  for_pairs<kOwnsQueries>(scores, own, other, [&](float& score, int query, int key) {
    const bool seen = key < a.sizes.keys && query < a.sizes.queries && !(a.causal && key > query);
    score = seen ? a.mask.apply(n, h, query, key, score) : -INFINITY;
  });
}

/// Dropout: values times what their pair is kept by.
template <bool kOwnsQueries, typename T, int kCount>
__device__ inline void drop(float (&values)[kCount][4], const Attention<T, float>& a, philox::Key dropout_key, int n,
                            int h, int own, int other) {
  for_pairs<kOwnsQueries>(values, own, other,
                          [&](float& value, int query, int key) { value *= a.keep(dropout_key, n, h, query, key); });
}

/// Sizes in 32 bits.
struct Counts {
  int batch, heads, group, queries, keys, width, value_width;
  __device__ explicit Counts(const Sizes& z)
      : batch(static_cast<int>(z.batch)),
        heads(static_cast<int>(z.heads)),
        group(static_cast<int>(z.group)),
        queries(static_cast<int>(z.queries)),
        keys(static_cast<int>(z.keys)),
        width(static_cast<int>(z.width)),
        value_width(static_cast<int>(z.value_width)) {}

  /// Of 64 queries from `first` on, none sees this key or a later one.
  __device__ int end_of_keys(bool causal, int first) const {
    return causal && first + kOwned < keys ? first + kOwned : keys;
  }
};

/// Of a grid: which 64 rows of which head. `last_first`: where attention is causal, the last queries take longest.
struct Owned {
  int n, h, first;
  __device__ Owned(std::int64_t block, int batch, int heads, int rows, bool last_first) {
    const int item = static_cast<int>(block), tiles = (rows + kOwned - 1) / kOwned, tile = item / (batch * heads);
    h = item % heads;
    n = item / heads % batch;
    first = (last_first ? tiles - 1 - tile : tile) * kOwned;
  }
  __host__ __device__ static std::int64_t count(std::int64_t batch, std::int64_t heads, std::int64_t rows) {
    return batch * heads * ((rows + kOwned - 1) / kOwned);
  }
};

/// Begins to load keys first.. of a head and their values.
template <typename T, int kWidth, int kKeys>
__device__ inline void load_keys(Tile<T, kWidth, kKeys>& keys, Tile<T, kWidth, kKeys>& values,
                                 const Attention<T, float>& a, const Counts& z, int n, int group, int first,
                                 bool packs) {
  load_tile(keys, a.key, n, group, first, z.keys, z.width, packs);
  load_tile(values, a.value, n, group, first, z.keys, z.value_width, packs);
}

template <typename T, int kWidth, cuda::FloatProducts kHow>
__global__ void __launch_bounds__(kTileThreads, kBlocks<T, kWidth>)
    tiled_forward_kernel(Attention<T, float> a, Heads<T> out, float* log_sums, bool packs) {
  constexpr int kKeys = (sizeof(T) == 2 ? 4096 : 2048) / kWidth;
  __shared__ Tiles<T, kWidth, kKeys> keys;
  __shared__ Tiles<T, kWidth, kKeys> values;
  const Counts z(a.sizes);
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const Lane lane;
  const Larger<float> larger;
  for (std::int64_t item = blockIdx.x; item < Owned::count(z.batch, z.heads, z.queries); item += gridDim.x) {
    const Owned own(item, z.batch, z.heads, z.queries, true);
    const int n = own.n, h = own.h, group = h / z.group, end = z.end_of_keys(a.causal, own.first);
    const OwnRows<T, kWidth> query(keys, a.query, n, h, own.first, z.queries, z.width, packs, lane);
    float result[kWidth / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    const auto load = [&](int which, int first) {
      load_keys(keys[which], values[which], a, z, n, group, first, packs);
    };
    __syncthreads();
    load(0, 0);
    for (int first = 0, now = 0; first < end; first += kKeys, now ^= 1) {
      cuda::wait_for_copies();
      __syncthreads();
      if (first + kKeys < end) load(now ^ 1, first + kKeys);
      float weights[kKeys / 8][4];
      score_tile<kHow>(weights, query, keys[now], lane);
      float highest[2] = {top[0], top[1]};
      finish_scores<true>(weights, a, n, h, own.first + lane.row, first + 2 * lane.t,
                          all_plain(a, own.first, kOwned, first, kKeys));
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) highest[i / 2] = larger(weights[j][i], highest[i / 2]);
      }
      float shift[2], factor[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        highest[half] = row_reduce(highest[half], larger);
        shift[half] = highest[half] == -INFINITY ? 0.0f : highest[half];
        factor[half] = top[half] == -INFINITY ? 0.0f : std::exp(top[half] - shift[half]);
        top[half] = highest[half];
        sum[half] *= factor[half];
      }
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          weights[j][i] = exponential<T>(weights[j][i] - shift[i / 2]);
          sum[i / 2] += weights[j][i];
        }
      }
      if (a.dropout) drop<true>(weights, a, dropout_key, n, h, own.first + lane.row, first + 2 * lane.t);
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) result[j][i] *= factor[i / 2];
      }
      add_rows<kHow>(result, weights, values[now], lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = row_reduce(sum[half], cuda::Add<float>());
      const int l = own.first + lane.row + half * 8;
      if (l >= z.queries) continue;
      const bool none = total == 0.0f;
      store_row<T, kWidth>(out.row(n, h, l), result, half, none ? 0.0f : 1.0f / total, z.value_width, packs, lane);
      if (lane.t == 0) log_sums[a.number(n, h, l)] = none ? INFINITY : top[half] + std::log(total);
    }
  }
}

constexpr int kDeltaLanes = 8;

/// deltas[row] = sum(grad * out) of each query, by kDeltaLanes lanes each. `packs`: 16 bytes at a time may be read.
template <typename T>
__global__ void row_delta_kernel(Sizes z, Heads<T> out, Heads<T> grad, float* deltas, bool packs) {
  constexpr int kLanes = kDeltaLanes, kPack = 16 / sizeof(T);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const auto queries = static_cast<unsigned>(z.queries), heads = static_cast<unsigned>(z.heads);
  const std::int64_t rows = z.batch * z.heads * z.queries;
  // Lanes without a row take part in the exchange.
  for (std::int64_t begin = cuda::global_thread() / cuda::kWarpSize * (cuda::kWarpSize / kLanes); begin < rows;
       begin += cuda::all_threads() / kLanes) {
    const std::int64_t item = begin + threadIdx.x % cuda::kWarpSize / kLanes;
    const unsigned row = static_cast<unsigned>(item < rows ? item : 0), l = row % queries, h = row / queries % heads,
                   n = row / queries / heads;
    const T *of_out = out.row(n, h, l), *of_grad = grad.row(n, h, l);
    float sum = 0;
    for (int d = lane * kPack; d < z.value_width; d += kLanes * kPack) {
      if (packs) {
        const auto a = *reinterpret_cast<const cuda::Pack<T, kPack>*>(of_grad + d),
                   b = *reinterpret_cast<const cuda::Pack<T, kPack>*>(of_out + d);
#pragma unroll
        for (int j = 0; j < kPack; ++j) sum += from_element<float>(a.value[j]) * from_element<float>(b.value[j]);
      } else {
        for (int j = d; j < d + kPack && j < z.value_width; ++j)
          sum += from_element<float>(of_grad[j]) * from_element<float>(of_out[j]);
      }
    }
#pragma unroll
    for (int apart = 1; apart < kLanes; apart *= 2) sum += cuda::shuffle_xor(sum, apart);
    if (lane == 0 && item < rows) deltas[item] = sum;
  }
}

template <typename T, int kWidth, cuda::FloatProducts kHow>
__global__ void __launch_bounds__(kTileThreads, kBlocks<T, kWidth>)
    tiled_query_kernel(Attention<T, float> a, Heads<T> grad, const float* log_sums, const float* deltas,
                       Heads<T> grad_query, bool packs) {
  constexpr int kKeys = 2048 / kWidth;
  __shared__ Tiles<T, kWidth, kKeys> keys;
  __shared__ Tiles<T, kWidth, kKeys> values;
  const Counts z(a.sizes);
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const Lane lane;
  for (std::int64_t item = blockIdx.x; item < Owned::count(z.batch, z.heads, z.queries); item += gridDim.x) {
    const Owned own(item, z.batch, z.heads, z.queries, true);
    const int n = own.n, h = own.h, group = h / z.group, end = z.end_of_keys(a.causal, own.first);
    const OwnRows<T, kWidth> query(keys, a.query, n, h, own.first, z.queries, z.width, packs, lane);
    const OwnRows<T, kWidth> slope(values, grad, n, h, own.first, z.queries, z.value_width, packs, lane);
    float log_sum[2] = {}, delta[2] = {}, result[kWidth / 8][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int l = own.first + lane.row + half * 8;
      if (l >= z.queries) continue;
      log_sum[half] = log_sums[a.number(n, h, l)];
      delta[half] = deltas[a.number(n, h, l)];
    }
    const auto load = [&](int which, int first) {
      load_keys(keys[which], values[which], a, z, n, group, first, packs);
    };
    __syncthreads();
    load(0, 0);
    for (int first = 0, now = 0; first < end; first += kKeys, now ^= 1) {
      cuda::wait_for_copies();
      __syncthreads();
      if (first + kKeys < end) load(now ^ 1, first + kKeys);
      float weights[kKeys / 8][4], slopes[kKeys / 8][4];
      score_tile<kHow>(weights, query, keys[now], lane);
      score_tile<kHow>(slopes, slope, values[now], lane);
      finish_scores<true>(weights, a, n, h, own.first + lane.row, first + 2 * lane.t,
                          all_plain(a, own.first, kOwned, first, kKeys));
      if (a.dropout) drop<true>(slopes, a, dropout_key, n, h, own.first + lane.row, first + 2 * lane.t);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          slopes[j][i] = exponential<T>(weights[j][i] - log_sum[i / 2]) * (slopes[j][i] - delta[i / 2]) * a.scale;
      }
      add_rows<kHow>(result, slopes, keys[now], lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int l = own.first + lane.row + half * 8;
      if (l < z.queries) store_row<T, kWidth>(grad_query.row(n, h, l), result, half, 1.0f, z.width, packs, lane);
    }
  }
}

/// Of queries before `first`, the log_sum that is not a number, if there is one; else 0. For all threads of a block.
template <typename T>
__device__ inline float broken_before(const Attention<T, float>& a, const float* log_sums, std::int64_t n,
                                      std::int64_t h, std::int64_t first) {
  float broken = 0;
  for (std::int64_t l = threadIdx.x; l < first && l < a.sizes.queries; l += kTileThreads) {
    const float log_sum = log_sums[a.number(n, h, l)];
    if (log_sum != log_sum) broken = log_sum;
  }
  return cuda::block_sum(broken);
}

template <typename T, int kWidth, cuda::FloatProducts kHow>
__global__ void __launch_bounds__(kTileThreads, kBlocks<T, kWidth>)
    tiled_key_kernel(Attention<T, float> a, Heads<T> grad, const float* log_sums, const float* deltas,
                     Heads<T> grad_key, Heads<T> grad_value, bool packs) {
  constexpr int kQueries = 2048 / kWidth;
  __shared__ Tiles<T, kWidth, kQueries> queries;
  __shared__ Tiles<T, kWidth, kQueries> grads;
  __shared__ float of_rows[2][2][kQueries];  // log_sums and deltas
  const Counts z(a.sizes);
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const Lane lane;
  const int kv_heads = z.heads / z.group;
  for (std::int64_t item = blockIdx.x; item < Owned::count(z.batch, kv_heads, z.keys); item += gridDim.x) {
    const Owned own(item, z.batch, kv_heads, z.keys, false);
    const int n = own.n, group = own.h;
    const OwnRows<T, kWidth> key(queries, a.key, n, group, own.first, z.keys, z.width, packs, lane);
    const OwnRows<T, kWidth> value(grads, a.value, n, group, own.first, z.keys, z.value_width, packs, lane);
    float to_key[kWidth / 8][4] = {}, to_value[kWidth / 8][4] = {};
    for (int h = group * z.group; h < (group + 1) * z.group; ++h) {
      if (a.causal) {  // earlier queries count only if they are not numbers
        const float broken = broken_before(a, log_sums, n, h, own.first);
#pragma unroll
        for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            to_key[j][i] += broken;
            to_value[j][i] += broken;
          }
        }
      }
      const auto load = [&](int which, int first) {
        load_tile(queries[which], a.query, n, h, first, z.queries, z.width, packs);
        load_tile(grads[which], grad, n, h, first, z.queries, z.value_width, packs);
        if (threadIdx.x < 2 * kQueries) {
          const int of = static_cast<int>(threadIdx.x) / kQueries, i = static_cast<int>(threadIdx.x) % kQueries;
          const bool inside = first + i < z.queries;
          const float* const from = of == 0 ? log_sums : deltas;
          cuda::copy_async<4>(&of_rows[which][of][i], from + a.number(n, h, inside ? first + i : 0), inside);
        }
      };
      const int begin = a.causal ? own.first : 0;
      __syncthreads();
      if (begin < z.queries) load(0, begin);
      for (int first = begin, now = 0; first < z.queries; first += kQueries, now ^= 1) {
        cuda::wait_for_copies();
        __syncthreads();
        if (first + kQueries < z.queries) load(now ^ 1, first + kQueries);
        float weights[kQueries / 8][4], slopes[kQueries / 8][4];
        score_tile<kHow>(weights, key, queries[now], lane);
        score_tile<kHow>(slopes, value, grads[now], lane);
        finish_scores<false>(weights, a, n, h, own.first + lane.row, first + 2 * lane.t,
                             all_plain(a, first, kQueries, own.first, kOwned));
        if (a.dropout) drop<false>(slopes, a, dropout_key, n, h, own.first + lane.row, first + 2 * lane.t);
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = 8 * j + 2 * lane.t + i % 2;
            weights[j][i] = exponential<T>(weights[j][i] - of_rows[now][0][row]);
            slopes[j][i] = weights[j][i] * (slopes[j][i] - of_rows[now][1][row]) * a.scale;
          }
        }
        if (a.dropout) drop<false>(weights, a, dropout_key, n, h, own.first + lane.row, first + 2 * lane.t);
        add_rows<kHow>(to_value, weights, grads[now], lane);
        add_rows<kHow>(to_key, slopes, queries[now], lane);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int s = own.first + lane.row + half * 8;
      if (s >= z.keys) continue;
      store_row<T, kWidth>(grad_key.row(n, group, s), to_key, half, 1.0f, z.width, packs, lane);
      store_row<T, kWidth>(grad_value.row(n, group, s), to_value, half, 1.0f, z.value_width, packs, lane);
    }
  }
}

}  // namespace lockstep::attention_cuda
