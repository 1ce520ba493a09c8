#pragma once

// Tiles of rows in shared memory, and their products. For .cu files only; see Note [Tiles of attention on CUDA].

#include <cstdint>

#include "lockstep/autograd/ops/scaled_dot_product_attention/attention_operands.cuh"
#include "lockstep/core/cuda/async_copy.cuh"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/cuda/tensor_core.cuh"

namespace lockstep::attention_cuda {

constexpr int kOwned = 64, kTileThreads = 128;
/// The widest rows of query, key and value that are computed so.
constexpr int kWidestTile = 128;

template <typename T, int kWidth, int kRows>
struct Tile {
  // Rows lie so far apart that what the lanes of a warp read at once lies in different banks.
  static constexpr int kStride = kWidth + 8;
  alignas(16) T rows[kRows][kStride];
};

/// Begins to load rows first.. of a head as a tile; zeros where there are none. It is whole after wait_for_copies() and
/// a barrier. `packs`: 16 bytes at a time may be read.
template <typename T, int kWidth, int kRows>
__device__ inline void load_tile(Tile<T, kWidth, kRows>& tile, const Heads<T>& from, int n, int h, int first, int end,
                                 int width, bool packs) {
  constexpr int kPack = 16 / sizeof(T), kPacks = kWidth / kPack, kOfThread = kRows * kPacks / kTileThreads;
  using Pack = cuda::Pack<T, kPack>;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const int place = static_cast<int>(threadIdx.x) + i * kTileThreads, row = place / kPacks,
              column = place % kPacks * kPack;
    T* const to = &tile.rows[row][column];
    if (packs) {
      const bool inside = first + row < end && column < width;
      cuda::copy_async<16>(to, from.row(n, h, inside ? first + row : 0) + (inside ? column : 0), inside);
      continue;
    }
    Pack pack{};
#pragma unroll
    for (int j = 0; j < kPack; ++j)
      if (first + row < end && column + j < width) pack.value[j] = from.row(n, h, first + row)[column + j];
    *reinterpret_cast<Pack*>(to) = pack;
  }
}

/// One side's tiles: one to compute with, one that is being loaded.
template <typename T, int kWidth, int kRows>
using Tiles = Tile<T, kWidth, kRows>[2];

/// What a lane of a warp is in fragments.
struct Lane {
  int g = static_cast<int>(threadIdx.x % 32) / 4, t = static_cast<int>(threadIdx.x % 4);
  int row = static_cast<int>(threadIdx.x / 32) * 16 + g;  ///< of the 64 that the block owns; and row + 8
  __device__ Lane() {}
};

/// Rows of a head that the warp owns, as left factors of sums over their columns. They come by way of tiles, which are
/// free again for all after the next barrier.
template <typename T, int kWidth>
struct OwnRows {
  cuda::FragmentA<T> steps[kWidth / 16];

  template <int kRows>
  __device__ OwnRows(Tiles<T, kWidth, kRows>& tiles, const Heads<T>& from, int n, int h, int first, int end, int width,
                     bool packs, Lane lane) {
    constexpr int kTogether = kOwned / kRows < 2 ? 1 : 2;
#pragma unroll
    for (int part = 0; part < kOwned; part += kTogether * kRows) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kTogether; ++i) load_tile(tiles[i], from, n, h, first + part + i * kRows, end, width, packs);
      cuda::wait_for_copies();
      __syncthreads();
      const int row = lane.row - part;
      if (row < 0 || row >= kTogether * kRows) continue;
      const Tile<T, kWidth, kRows>& tile = tiles[row / kRows];
#pragma unroll
      for (int step = 0; step < kWidth / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
          steps[step].pairs[i] = *reinterpret_cast<const cuda::Two<T>*>(
              &tile.rows[row % kRows + i % 2 * 8][16 * step + i / 2 * 8 + 2 * lane.t]);
      }
    }
  }
};

/// Two right factors, side by side.
template <typename T>
struct Pair {
  cuda::FragmentB<T> of[2];
};

/// Right factors whose columns are the tile's rows: those of 16 rows from `row` on.
template <typename T, int kWidth, int kRows>
__device__ inline Pair<T> across(const Tile<T, kWidth, kRows>& tile, int row, int column, Lane lane) {
  Pair<T> found;
  if constexpr (sizeof(T) == 2) {
    const int i = static_cast<int>(threadIdx.x % 32);
    cuda::Two<T> four[4];
    cuda::load_matrices<false>(four, &tile.rows[row + i / 16 * 8 + i % 8][column + i / 8 % 2 * 8]);
#pragma unroll
    for (int j = 0; j < 4; ++j) found.of[j / 2].pairs[j % 2] = four[j];
  } else {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      found.of[j / 2].pairs[j % 2] =
          *reinterpret_cast<const cuda::Two<T>*>(&tile.rows[row + j / 2 * 8 + lane.g][column + j % 2 * 8 + 2 * lane.t]);
  }
  return found;
}
/// Right factors that lie as the tile does: those of 16 columns from `column` on.
template <typename T, int kWidth, int kRows>
__device__ inline Pair<T> along(const Tile<T, kWidth, kRows>& tile, int row, int column, Lane lane) {
  Pair<T> found;
  if constexpr (sizeof(T) == 2) {
    const int i = static_cast<int>(threadIdx.x % 32);
    cuda::Two<T> four[4];
    cuda::load_matrices<true>(four, &tile.rows[row + i % 16][column + i / 16 * 8]);
#pragma unroll
    for (int j = 0; j < 4; ++j) found.of[j / 2].pairs[j % 2] = four[j];
  } else {
#pragma unroll
    for (int j = 0; j < 8; ++j)
      found.of[j / 4].pairs[j / 2 % 2].value[j % 2] =
          tile.rows[row + j / 2 % 2 * 8 + 2 * lane.t + j % 2][column + j / 4 * 8 + lane.g];
  }
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
  }
#pragma unroll
  for (int step = 0; step < kWidth / 16; ++step) {
#pragma unroll
    for (int j = 0; j < kRows / 8; j += 2) {
      const Pair<T> right = across(tile, 8 * j, 16 * step, lane);
      cuda::multiply<kHow>(scores[j], own.steps[step], right.of[0]);
      cuda::multiply<kHow>(scores[j + 1], own.steps[step], right.of[1]);
    }
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
    for (int j = 0; j < kWidth / 8; j += 2) {
      const Pair<T> right = along(tile, 16 * step, 8 * j, lane);
      cuda::multiply<kHow>(sums[j], left, right.of[0]);
      cuda::multiply<kHow>(sums[j + 1], left, right.of[1]);
    }
  }
}

/// Writes sums * factor of a row's own half: 0 row, 1 row + 8.
template <typename T, int kWidth>
__device__ inline void store_row(T* to, const float (&sums)[kWidth / 8][4], int half, float factor, int width,
                                 bool packs, Lane lane) {
#pragma unroll
  for (int j = 0; j < kWidth / 8; ++j) {
    const int column = 8 * j + 2 * lane.t;
    const cuda::Two<T> two = cuda::make_two<T>(sums[j][2 * half] * factor, sums[j][2 * half + 1] * factor);
    if (packs && column < width) {
      *reinterpret_cast<cuda::Two<T>*>(to + column) = two;
    } else {
      if (column < width) to[column] = two.value[0];
      if (column + 1 < width) to[column + 1] = two.value[1];
    }
  }
}

/// op over the four lanes that hold a row.
template <typename Op>
__device__ inline float row_reduce(float value, Op op) {
  value = op(value, cuda::shuffle_xor(value, 1));
  return op(value, cuda::shuffle_xor(value, 2));
}

}  // namespace lockstep::attention_cuda
