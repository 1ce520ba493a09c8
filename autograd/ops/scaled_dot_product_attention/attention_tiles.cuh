#pragma once

// Attention on CUDA devices by tiles on tensor cores. For .cu files only.

#include <cmath>
#include <cstdint>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_operands.cuh"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/cuda/tensor_core.cuh"

namespace lockstep::attention_cuda {

// Note [Tiles of attention]
// A block of four warps owns 64 queries (forward, and their gradient) or 64 keys (the gradients of key and value), a
// warp 16 of them, and goes through the other side in tiles that lie in shared memory. A tile of scores is a product of
// fragments (Note [Fragments]); the weights made of it are, where they lie, the left factor of the next product, as in
// Dao, "FlashAttention-2" (2023). Backward computes the scores twice, once for queries and once for keys, so that every
// sum has one owner: the same bits come out each time, without atomic additions. float is multiplied in three parts,
// unless TF32 is allowed.

constexpr int kOwned = 64, kTileThreads = 128;
/// The widest rows of query, key and value that are computed so.
constexpr int kWidestTile = 128;

template <typename T, int kWidth, int kRows>
struct Tile {
  // Rows lie so far apart that what the lanes of a warp read at once lies in different banks.
  static constexpr int kStride = kWidth + 8;
  T rows[kRows][kStride];
};

/// Rows first.. of a head as a tile; zeros where there are none. `packs`: 16 bytes at a time may be read.
template <typename T, int kWidth, int kRows>
__device__ inline void load_tile(Tile<T, kWidth, kRows>& tile, const Heads<T>& from, std::int64_t n, std::int64_t h,
                                 std::int64_t first, std::int64_t end, int width, bool packs) {
  constexpr int kPack = 16 / sizeof(T), kPacks = kWidth / kPack;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kPacks; i += kTileThreads) {
    const int row = i / kPacks, column = i % kPacks * kPack;
    cuda::Pack<T, kPack> pack{};
    if (first + row < end) {
      const T* source = from.row(n, h, first + row) + column;
      if (packs && column < width) {
        pack = *reinterpret_cast<const cuda::Pack<T, kPack>*>(source);
      } else {
#pragma unroll
        for (int j = 0; j < kPack; ++j)
          if (column + j < width) pack.value[j] = source[j];
      }
    }
    *reinterpret_cast<cuda::Pack<T, kPack>*>(&tile.rows[row][column]) = pack;
  }
}

/// What a lane of a warp is in fragments.
struct Lane {
  int g = static_cast<int>(threadIdx.x % 32) / 4, t = static_cast<int>(threadIdx.x % 4);
  int row = static_cast<int>(threadIdx.x / 32) * 16 + g;  ///< of the 64 that the block owns; and row + 8
  __device__ Lane() {}
};

/// Rows of a head that the warp owns, as left factors of sums over their columns.
template <typename T, int kWidth>
struct OwnRows {
  cuda::FragmentA<T> steps[kWidth / 16];

  __device__ OwnRows(const Heads<T>& from, std::int64_t n, std::int64_t h, std::int64_t first, std::int64_t end,
                     int width, Lane lane) {
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::int64_t row = first + lane.row + i / 2 % 2 * 8;
        const int column = step * 16 + i / 4 * 8 + 2 * lane.t + i % 2;
        steps[step].pairs[i / 2].value[i % 2] =
            row < end && column < width ? from.row(n, h, row)[column] : to_element<T>(0.0f);
      }
    }
  }
};

/// Right factors whose columns are the tile's rows.
template <typename T, int kWidth, int kRows>
__device__ inline cuda::FragmentB<T> across(const Tile<T, kWidth, kRows>& tile, int row, int column, Lane lane) {
  const T* at = &tile.rows[row + lane.g][column + 2 * lane.t];
  return {{*reinterpret_cast<const cuda::Two<T>*>(at), *reinterpret_cast<const cuda::Two<T>*>(at + 8)}};
}
/// Right factors that lie as the tile does.
template <typename T, int kWidth, int kRows>
__device__ inline cuda::FragmentB<T> along(const Tile<T, kWidth, kRows>& tile, int row, int column, Lane lane) {
  cuda::FragmentB<T> found;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    found.pairs[i / 2].value[i % 2] = tile.rows[row + i / 2 * 8 + 2 * lane.t + i % 2][column + lane.g];
  return found;
}

/// scores[j] = own rows . rows 8j.. of the tile.
template <cuda::FloatProducts kHow, typename T, int kWidth, int kRows>
__device__ inline void score_tile(float (&scores)[kRows / 8][4], const OwnRows<T, kWidth>& own,
                                  const Tile<T, kWidth, kRows>& tile, Lane lane) {
#pragma unroll
  for (int j = 0; j < kRows / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] = 0.0f;
#pragma unroll
    for (int step = 0; step < kWidth / 16; ++step)
      cuda::multiply<kHow>(scores[j], own.steps[step], across(tile, 8 * j, 16 * step, lane));
  }
}

/// sums += weights . tile
template <cuda::FloatProducts kHow, typename T, int kWidth, int kRows>
__device__ inline void add_rows(float (&sums)[kWidth / 8][4], const float (&weights)[kRows / 8][4],
                                const Tile<T, kWidth, kRows>& tile, Lane lane) {
#pragma unroll
  for (int step = 0; step < kRows / 16; ++step) {
    cuda::FragmentA<T> left;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&pair)[4] = weights[2 * step + i / 2];
      left.pairs[i] = cuda::make_two<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
    }
#pragma unroll
    for (int j = 0; j < kWidth / 8; ++j) cuda::multiply<kHow>(sums[j], left, along(tile, 16 * step, 8 * j, lane));
  }
}

/// Writes sums * factor of a row's own half: 0 row, 1 row + 8.
template <typename T, int kWidth>
__device__ inline void store_row(T* to, const float (&sums)[kWidth / 8][4], int half, float factor, int width,
                                 Lane lane) {
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = 8 * j + 2 * lane.t + i;
      if (column < width) to[column] = to_element<T>(sums[j][2 * half + i] * factor);
    }
  }
}

/// op over the four lanes that hold a row.
template <typename Op>
__device__ inline float row_reduce(float value, Op op) {
  value = op(value, cuda::shuffle_xor(value, 1));
  return op(value, cuda::shuffle_xor(value, 2));
}

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
__device__ inline bool all_plain(const Attention<T, float>& a, std::int64_t l, int queries, std::int64_t s, int keys) {
  return !a.mask.data && l + queries <= a.sizes.queries && s + keys <= a.sizes.keys && (!a.causal || s + keys <= l + 1);
}

/// The score of a pair after scale and mask; -infinity where there is none.
template <typename T>
__device__ inline float masked_score(const Attention<T, float>& a, std::int64_t n, std::int64_t h, std::int64_t l,
                                     std::int64_t s, float product) {
  if (s >= a.sizes.keys || l >= a.sizes.queries || (a.causal && s > l)) return -INFINITY;
  return a.mask.apply(n, h, l, s, product * a.scale);
}

/// Of a grid: which 64 rows of which head. The last rows first: where attention is causal, they take longest.
struct Owned {
  std::int64_t n, h, first;
  __device__ Owned(std::int64_t item, std::int64_t batch, std::int64_t heads, std::int64_t rows, bool last_first) {
    const std::int64_t tiles = (rows + kOwned - 1) / kOwned, tile = item / (batch * heads);
    h = item % heads;
    n = item / heads % batch;
    first = (last_first ? tiles - 1 - tile : tile) * kOwned;
  }
  __host__ __device__ static std::int64_t count(std::int64_t batch, std::int64_t heads, std::int64_t rows) {
    return batch * heads * ((rows + kOwned - 1) / kOwned);
  }
};

template <typename T, int kWidth, cuda::FloatProducts kHow>
__global__ void __launch_bounds__(kTileThreads)
    tiled_forward_kernel(Attention<T, float> a, Heads<T> out, float* log_sums, bool packs) {
  constexpr int kKeys = 4096 / kWidth;
  __shared__ Tile<T, kWidth, kKeys> keys;
  __shared__ Tile<T, kWidth, kKeys> values;
  const Sizes z = a.sizes;
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const Lane lane;
  const auto larger = [](float x, float y) { return x > y ? x : y; };  // a NaN shows in the sum
  const auto add = [](float x, float y) { return x + y; };
  for (std::int64_t item = blockIdx.x; item < Owned::count(z.batch, z.heads, z.queries); item += gridDim.x) {
    const Owned own(item, z.batch, z.heads, z.queries, true);
    const std::int64_t n = own.n, h = own.h, group = h / z.group, seen = own.first + kOwned;
    const std::int64_t limit = a.causal && seen < z.keys ? seen : z.keys;
    const OwnRows<T, kWidth> query(a.query, n, h, own.first, z.queries, static_cast<int>(z.width), lane);
    float result[kWidth / 8][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {};
    for (std::int64_t first = 0; first < limit; first += kKeys) {
      __syncthreads();
      load_tile(keys, a.key, n, group, first, z.keys, static_cast<int>(z.width), packs);
      load_tile(values, a.value, n, group, first, z.keys, static_cast<int>(z.value_width), packs);
      __syncthreads();
      float weights[kKeys / 8][4];
      score_tile<kHow>(weights, query, keys, lane);
      float highest[2] = {top[0], top[1]};
      const bool plain = all_plain(a, own.first, kOwned, first, kKeys);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          weights[j][i] = plain ? weights[j][i] * a.scale
                                : masked_score(a, n, h, own.first + lane.row + i / 2 * 8,
                                               first + 8 * j + 2 * lane.t + i % 2, weights[j][i]);
          highest[i / 2] = larger(weights[j][i], highest[i / 2]);
        }
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
          if (a.dropout)
            weights[j][i] *=
                a.keep(dropout_key, n, h, own.first + lane.row + i / 2 * 8, first + 8 * j + 2 * lane.t + i % 2);
        }
      }
#pragma unroll
      for (int j = 0; j < kWidth / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) result[j][i] *= factor[i / 2];
      }
      add_rows<kHow>(result, weights, values, lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float total = row_reduce(sum[half], add);
      const std::int64_t l = own.first + lane.row + half * 8;
      if (l >= z.queries) continue;
      const bool none = total == 0.0f;
      store_row<T, kWidth>(out.row(n, h, l), result, half, none ? 0.0f : 1.0f / total, static_cast<int>(z.value_width),
                           lane);
      if (lane.t == 0) log_sums[a.number(n, h, l)] = none ? INFINITY : top[half] + std::log(total);
    }
  }
}

/// deltas[row] = sum(grad * out) of each query, by a warp each.
template <typename T>
__global__ void row_delta_kernel(Sizes z, Heads<T> out, Heads<T> grad, float* deltas) {
  const std::int64_t rows = z.batch * z.heads * z.queries, lane = threadIdx.x % cuda::kWarpSize;
  for (std::int64_t item = cuda::global_thread() / cuda::kWarpSize; item < rows;
       item += cuda::all_threads() / cuda::kWarpSize) {
    const std::int64_t l = item % z.queries, h = item / z.queries % z.heads, n = item / z.queries / z.heads;
    float sum = 0;
    for (std::int64_t d = lane; d < z.value_width; d += cuda::kWarpSize)
      sum += from_element<float>(grad.row(n, h, l)[d]) * from_element<float>(out.row(n, h, l)[d]);
    sum = cuda::warp_sum(sum);
    if (lane == 0) deltas[item] = sum;
  }
}

template <typename T, int kWidth, cuda::FloatProducts kHow>
__global__ void __launch_bounds__(kTileThreads)
    tiled_query_kernel(Attention<T, float> a, Heads<T> grad, const float* log_sums, const float* deltas,
                       Heads<T> grad_query, bool packs) {
  constexpr int kKeys = 2048 / kWidth;
  __shared__ Tile<T, kWidth, kKeys> keys;
  __shared__ Tile<T, kWidth, kKeys> values;
  const Sizes z = a.sizes;
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const Lane lane;
  for (std::int64_t item = blockIdx.x; item < Owned::count(z.batch, z.heads, z.queries); item += gridDim.x) {
    const Owned own(item, z.batch, z.heads, z.queries, true);
    const std::int64_t n = own.n, h = own.h, group = h / z.group, seen = own.first + kOwned;
    const std::int64_t limit = a.causal && seen < z.keys ? seen : z.keys;
    const OwnRows<T, kWidth> query(a.query, n, h, own.first, z.queries, static_cast<int>(z.width), lane);
    const OwnRows<T, kWidth> slope(grad, n, h, own.first, z.queries, static_cast<int>(z.value_width), lane);
    float log_sum[2] = {}, delta[2] = {}, result[kWidth / 8][4] = {};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t l = own.first + lane.row + half * 8;
      if (l >= z.queries) continue;
      log_sum[half] = log_sums[a.number(n, h, l)];
      delta[half] = deltas[a.number(n, h, l)];
    }
    for (std::int64_t first = 0; first < limit; first += kKeys) {
      __syncthreads();
      load_tile(keys, a.key, n, group, first, z.keys, static_cast<int>(z.width), packs);
      load_tile(values, a.value, n, group, first, z.keys, static_cast<int>(z.value_width), packs);
      __syncthreads();
      float weights[kKeys / 8][4], slopes[kKeys / 8][4];
      score_tile<kHow>(weights, query, keys, lane);
      score_tile<kHow>(slopes, slope, values, lane);
      const bool plain = all_plain(a, own.first, kOwned, first, kKeys);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::int64_t l = own.first + lane.row + i / 2 * 8, s = first + 8 * j + 2 * lane.t + i % 2;
          const float score = plain ? weights[j][i] * a.scale : masked_score(a, n, h, l, s, weights[j][i]);
          const float weight = exponential<T>(score - log_sum[i / 2]);
          const float keep = a.dropout ? a.keep(dropout_key, n, h, l, s) : 1.0f;
          slopes[j][i] = weight * (slopes[j][i] * keep - delta[i / 2]) * a.scale;
        }
      }
      add_rows<kHow>(result, slopes, keys, lane);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t l = own.first + lane.row + half * 8;
      if (l < z.queries)
        store_row<T, kWidth>(grad_query.row(n, h, l), result, half, 1.0f, static_cast<int>(z.width), lane);
    }
  }
}

/// Of queries before `first`, the log_sum that is not a number, if there is one; else 0.
template <typename T>
__device__ inline float broken_before(const Attention<T, float>& a, const float* log_sums, std::int64_t n,
                                      std::int64_t h, std::int64_t first) {
  float broken = 0;
  for (std::int64_t l = threadIdx.x % cuda::kWarpSize; l < first && l < a.sizes.queries; l += cuda::kWarpSize) {
    const float log_sum = log_sums[a.number(n, h, l)];
    if (log_sum != log_sum) broken = log_sum;
  }
  return cuda::warp_sum(broken);
}

template <typename T, int kWidth, cuda::FloatProducts kHow>
__global__ void __launch_bounds__(kTileThreads)
    tiled_key_kernel(Attention<T, float> a, Heads<T> grad, const float* log_sums, const float* deltas,
                     Heads<T> grad_key, Heads<T> grad_value, bool packs) {
  constexpr int kQueries = 2048 / kWidth;
  __shared__ Tile<T, kWidth, kQueries> queries;
  __shared__ Tile<T, kWidth, kQueries> grads;
  __shared__ float of_rows[2][kQueries];
  const Sizes z = a.sizes;
  const philox::Key dropout_key = a.dropout ? a.source.get() : philox::Key{};
  const Lane lane;
  const std::int64_t kv_heads = z.heads / z.group;
  for (std::int64_t item = blockIdx.x; item < Owned::count(z.batch, kv_heads, z.keys); item += gridDim.x) {
    const Owned own(item, z.batch, kv_heads, z.keys, false);
    const std::int64_t n = own.n, group = own.h;
    const OwnRows<T, kWidth> key(a.key, n, group, own.first, z.keys, static_cast<int>(z.width), lane);
    const OwnRows<T, kWidth> value(a.value, n, group, own.first, z.keys, static_cast<int>(z.value_width), lane);
    float to_key[kWidth / 8][4] = {}, to_value[kWidth / 8][4] = {};
    for (std::int64_t h = group * z.group; h < (group + 1) * z.group; ++h) {
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
      for (std::int64_t first = a.causal ? own.first : 0; first < z.queries; first += kQueries) {
        __syncthreads();
        load_tile(queries, a.query, n, h, first, z.queries, static_cast<int>(z.width), packs);
        load_tile(grads, grad, n, h, first, z.queries, static_cast<int>(z.value_width), packs);
        if (threadIdx.x < kQueries) {
          const std::int64_t l = first + threadIdx.x;
          of_rows[0][threadIdx.x] = l < z.queries ? log_sums[a.number(n, h, l)] : 0.0f;
          of_rows[1][threadIdx.x] = l < z.queries ? deltas[a.number(n, h, l)] : 0.0f;
        }
        __syncthreads();
        float weights[kQueries / 8][4], slopes[kQueries / 8][4];
        score_tile<kHow>(weights, key, queries, lane);
        score_tile<kHow>(slopes, value, grads, lane);
        const bool plain = all_plain(a, first, kQueries, own.first, kOwned);
#pragma unroll
        for (int j = 0; j < kQueries / 8; ++j) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int row = 8 * j + 2 * lane.t + i % 2;
            const std::int64_t l = first + row, s = own.first + lane.row + i / 2 * 8;
            const float score = plain ? weights[j][i] * a.scale : masked_score(a, n, h, l, s, weights[j][i]);
            const float weight = exponential<T>(score - of_rows[0][row]);
            const float keep = a.dropout ? a.keep(dropout_key, n, h, l, s) : 1.0f;
            weights[j][i] = weight * keep;
            slopes[j][i] = weight * (slopes[j][i] * keep - of_rows[1][row]) * a.scale;
          }
        }
        add_rows<kHow>(to_value, weights, grads, lane);
        add_rows<kHow>(to_key, slopes, queries, lane);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const std::int64_t s = own.first + lane.row + half * 8;
      if (s >= z.keys) continue;
      store_row<T, kWidth>(grad_key.row(n, group, s), to_key, half, 1.0f, static_cast<int>(z.width), lane);
      store_row<T, kWidth>(grad_value.row(n, group, s), to_value, half, 1.0f, static_cast<int>(z.value_width), lane);
    }
  }
}

}  // namespace lockstep::attention_cuda
