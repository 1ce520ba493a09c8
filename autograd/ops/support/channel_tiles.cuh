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
  static std::int64_t tile(const ChannelLayout&) { return kTile; }
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

/// The same where the inner size is 1: lanes stand for neighbouring channels, warps for samples.
struct Columns {
  static constexpr int kWidth = 1, kItems = 16;
  static constexpr int kChannels = 1;
  ChannelLayout layout;
  std::int64_t channel, chunk;

  static std::int64_t tile(const ChannelLayout&) { return std::int64_t{kTileWarps} * kItems; }
  static unsigned blocks(const ChannelLayout& layout, std::int64_t chunks) {
    return static_cast<unsigned>((layout.channels + kWarpSize - 1) / kWarpSize * chunks);
  }
  __device__ Columns(const ChannelLayout& layout, std::int64_t chunks)
      : layout(layout),
        channel(blockIdx.x / chunks * kWarpSize + threadIdx.x % kWarpSize),
        chunk(blockIdx.x % chunks) {}
  __device__ std::int64_t first() const { return chunk * kTileWarps * kItems; }
  __device__ std::int64_t sample(int item) const { return first() + item * kTileWarps + threadIdx.x / kWarpSize; }
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

/// The same where whole samples fit into a block: each thread takes W neighbouring channels, and threads that lie one
/// sample's packs apart the same ones.
template <int W>
struct Samples {
  static constexpr int kWidth = W, kItems = 8 * W;
  static constexpr int kChannels = W;
  ChannelLayout layout;
  std::int64_t channel, chunk;
  int across, down, row;  ///< packs to a sample, samples to a row of the tile, and this thread's

  static bool suits(const ChannelLayout& layout) { return layout.channels % W == 0 && layout.channels / W <= kThreads; }
  static std::int64_t tile(const ChannelLayout& layout) { return kThreads / (layout.channels / W) * (kItems / W); }
  static unsigned blocks(const ChannelLayout&, std::int64_t chunks) { return static_cast<unsigned>(chunks); }
  __device__ Samples(const ChannelLayout& layout, std::int64_t)
      : layout(layout),
        chunk(blockIdx.x),
        across(static_cast<int>(layout.channels / W)),
        down(kThreads / across),
        row(static_cast<int>(threadIdx.x) / across) {
    channel = (static_cast<int>(threadIdx.x) - row * across) * W;
  }
  __device__ std::int64_t first() const { return chunk * down * (kItems / W); }
  __device__ std::int64_t sample(int pack) const { return first() + pack * down + row; }
  __device__ bool has(int pack) const { return row < down && sample(pack) < layout.batch; }
  __device__ std::int64_t offset(int pack) const { return sample(pack) * layout.channels + channel; }
  /// Over the rows: the lower half to the upper one, until one is left; all have the result.
  template <typename C, int N>
  __device__ Sums<C, N> sum(Sums<C, N> value) const {
    __shared__ C partial[N][kThreads];
    const int here = static_cast<int>(threadIdx.x);
    __syncthreads();  // all have read what an earlier call left
#pragma unroll
    for (int n = 0; n < N; ++n) partial[n][here] = value.value[n];
    for (int rows = down; rows > 1;) {
      const int half = (rows + 1) / 2;
      __syncthreads();
      if (row < rows - half)
#pragma unroll
        for (int n = 0; n < N; ++n) partial[n][here] += partial[n][here + half * across];
      rows = half;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; ++n) value.value[n] = partial[n][here - row * across];
    return value;
  }
  __device__ bool writes() const {
    return row == 0;
  }
};

/// Elements of a channel's tile `chunk`, of `count` in all.
__device__ inline double tile_count(std::int64_t chunk, std::int64_t tile, std::int64_t count) {
  const std::int64_t rest = count - chunk * tile;
  return static_cast<double>(rest < tile ? rest : tile);
}

/// Tiles to a channel.
template <typename Tile>
std::int64_t tiles_of(const ChannelLayout& layout) {
  return (layout.count() + Tile::tile(layout) - 1) / Tile::tile(layout);
}

/// Calls run.template operator()<Tile>() with the tile that suits layout and memory.
template <typename T, typename F>
void with_tile(const ChannelLayout& layout, bool aligned, F&& run) {
  constexpr int kWidth = 16 / sizeof(T);
  if (layout.inner == 1 && aligned && Samples<kWidth>::suits(layout)) {
    run.template operator()<Samples<kWidth>>();
  } else if (layout.inner == 1) {
    run.template operator()<Columns>();
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
