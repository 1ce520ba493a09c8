#pragma once

// How sums over each channel are cut on CUDA devices. For .cu files only.

#include "lockstep/autograd/ops/support/channel_layout.h"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/reduce.cuh"

namespace lockstep::cuda {

/// Note [Channel tiles]
/// A block takes a tile of one channel (or of 32 neighbouring ones, or pairs, where the inner size is 1), kItems
/// elements to a thread, so that they fit into registers and memory is read once. It leaves partial results in float64,
/// and a warp for each channel adds these up in a fixed order. How the work is cut is a function of the shape alone.
inline constexpr int kTileWarps = kThreads / kWarpSize;

/// A block's tile of one channel: elements of its planes, one sample after the other, W at a time.
template <int W>
struct Planes {
  static constexpr int kWidth = W, kItems = 16;
  static constexpr int kChannels = 1;  ///< of a thread: element j of each pack is of channel number j % kChannels
  static constexpr std::int64_t kTile = std::int64_t{kThreads} * kItems;
  ChannelLayout layout;
  std::int64_t channel, chunk;

  static unsigned blocks(const ChannelLayout& layout, std::int64_t chunks) {
    return static_cast<unsigned>(layout.channels * chunks);
  }
  __device__ Planes(const ChannelLayout& layout, std::int64_t chunks)
      : layout(layout), channel(blockIdx.x / chunks), chunk(blockIdx.x % chunks) {}
  __device__ std::int64_t first(int pack) const {
    return chunk * kTile + (static_cast<std::int64_t>(pack) * kThreads + threadIdx.x) * W;
  }
  __device__ bool has(int pack) const { return first(pack) < layout.batch * layout.inner; }
  __device__ std::int64_t offset(int pack) const {
    const std::int64_t at = first(pack), sample = at / layout.inner;
    return (sample * layout.channels + channel) * layout.inner + at - sample * layout.inner;
  }
  template <typename S>
  __device__ S sum(S value) const {
    return block_sum(value);
  }
  __device__ bool writes() const { return threadIdx.x == 0; }
};

/// The same where the inner size is 1: lanes stand for W neighbouring channels each, warps for samples. As there may be
/// very many samples, a thread takes more.
template <int W, int Items>
struct Columns {
  static constexpr int kWidth = W, kItems = Items;
  static constexpr int kChannels = W;
  static constexpr int kAcross = kWarpSize * W;  ///< channels of a block
  static constexpr std::int64_t kTile = std::int64_t{kTileWarps} * kItems / W;
  ChannelLayout layout;
  std::int64_t channel, chunk;

  static unsigned blocks(const ChannelLayout& layout, std::int64_t chunks) {
    return static_cast<unsigned>((layout.channels + kAcross - 1) / kAcross * chunks);
  }
  __device__ Columns(const ChannelLayout& layout, std::int64_t chunks)
      : layout(layout),
        channel(blockIdx.x / chunks * kAcross + threadIdx.x % kWarpSize * W),
        chunk(blockIdx.x % chunks) {}
  __device__ std::int64_t sample(int item) const { return chunk * kTile + item * kTileWarps + threadIdx.x / kWarpSize; }
  __device__ bool has(int item) const { return channel < layout.channels && sample(item) < layout.batch; }
  __device__ std::int64_t offset(int item) const { return sample(item) * layout.channels + channel; }
  /// Over the warps, lane by lane.
  template <typename S>
  __device__ S sum(S value) const {
    __shared__ S partial[kTileWarps][kWarpSize];
    const unsigned lane = threadIdx.x % kWarpSize;
    __syncthreads();  // all have read what an earlier call left
    partial[threadIdx.x / kWarpSize][lane] = value;
    __syncthreads();
    value = partial[0][lane];
    for (int w = 1; w < kTileWarps; ++w) value = value + partial[w][lane];
    return value;
  }
  __device__ bool writes() const { return threadIdx.x < kWarpSize && channel < layout.channels; }
};

/// Elements of a channel's tile `chunk`, of `count` in all.
__device__ inline double tile_count(std::int64_t chunk, std::int64_t tile, std::int64_t count) {
  const std::int64_t rest = count - chunk * tile;
  return static_cast<double>(rest < tile ? rest : tile);
}

/// Tiles to a channel.
template <typename Tile>
std::int64_t tiles_of(const ChannelLayout& layout) {
  return (layout.count() + Tile::kTile - 1) / Tile::kTile;
}

/// Calls run.template operator()<Tile>() with the tile that suits layout and memory.
template <typename T, typename F>
void with_tile(const ChannelLayout& layout, bool aligned, F&& run) {
  constexpr int kWidth = 16 / sizeof(T);
  constexpr int kMany = sizeof(T) > 4 ? 16 : 64, kWord = sizeof(T) < 4 ? 4 / sizeof(T) : 1;
  if (layout.inner == 1 && aligned && layout.channels % kWord == 0) {
    run.template operator()<Columns<kWord, kMany>>();
  } else if (layout.inner == 1) {
    run.template operator()<Columns<1, kMany>>();
  } else if (aligned && layout.inner % kWidth == 0) {
    run.template operator()<Planes<kWidth>>();
  } else {
    run.template operator()<Planes<1>>();
  }
}

/// Blocks for one warp to a channel.
inline unsigned warps_for(std::int64_t channels) {
  return static_cast<unsigned>((channels + kTileWarps - 1) / kTileWarps);
}

}  // namespace lockstep::cuda
