#pragma once

// How sums over each channel are cut on CUDA devices. For .cu files only.

#include <algorithm>

#include "lockstep/autograd/ops/support/channel_layout.h"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/reduce.cuh"

namespace lockstep::cuda {

/// Note [Channel tiles]
/// A block takes a tile of one channel, or, where the inner size is 1, of several. Each thread reads kPacks packs
/// together, which fit into registers, so that memory is read once. The block leaves partial results in float64, and a
/// warp for each channel adds these up in a fixed order. How the work is cut is a function of the shape, and of
/// whether memory is aligned, which ours is.
inline constexpr int kTileWarps = kThreads / kWarpSize;

/// What is divided once, on the host.
struct TilePlan {
  ChannelLayout layout;
  std::int64_t tile;    ///< elements of a channel to a block
  std::int64_t chunks;  ///< tiles to a channel
  int across = 1, down = 1, groups = 1;

  TilePlan(const ChannelLayout& layout, std::int64_t tile)
      : layout(layout), tile(tile), chunks((layout.count() + tile - 1) / tile) {}
  /// Elements of a channel's tile `chunk`.
  __device__ double count(std::int64_t chunk) const {
    const std::int64_t rest = layout.batch * layout.inner - chunk * tile;
    return static_cast<double>(rest < tile ? rest : tile);
  }
};

/// A block's tile of one channel: elements of its planes, one sample after the other, W at a time.
template <int W>
struct Planes {
  static constexpr int kWidth = W, kPacks = 16 / W;
  static constexpr int kChannels = 1;  ///< of a thread: element j of each pack is of channel number j % kChannels
  const TilePlan& plan;
  std::int64_t channel, chunk;

  static TilePlan plan_of(const ChannelLayout& layout) { return {layout, std::int64_t{kThreads} * kPacks * W}; }
  static unsigned blocks(const TilePlan& plan) { return static_cast<unsigned>(plan.layout.channels * plan.chunks); }
  __device__ explicit Planes(const TilePlan& plan)
      : plan(plan), channel(blockIdx.x / plan.chunks), chunk(blockIdx.x % plan.chunks) {}
  __device__ std::int64_t first(int pack) const {
    return chunk * kThreads * kPacks * W + (static_cast<std::int64_t>(pack) * kThreads + threadIdx.x) * W;
  }
  __device__ bool has(int pack) const { return first(pack) < plan.layout.batch * plan.layout.inner; }
  __device__ std::int64_t offset(int pack) const {
    const std::int64_t inner = plan.layout.inner, at = first(pack), sample = at / inner;
    return (sample * plan.layout.channels + channel) * inner + at - sample * inner;
  }
  template <typename S>
  __device__ S sum(S value) const {
    return block_sum(value);
  }
  __device__ bool writes() const { return threadIdx.x == 0; }
};

/// The same where the inner size is 1: lanes stand for neighbouring channels, warps for samples.
struct Columns {
  static constexpr int kWidth = 1, kPacks = 16;
  static constexpr int kChannels = 1;
  const TilePlan& plan;
  std::int64_t channel, chunk;

  static TilePlan plan_of(const ChannelLayout& layout) { return {layout, std::int64_t{kTileWarps} * kPacks}; }
  static unsigned blocks(const TilePlan& plan) {
    return static_cast<unsigned>((plan.layout.channels + kWarpSize - 1) / kWarpSize * plan.chunks);
  }
  __device__ explicit Columns(const TilePlan& plan)
      : plan(plan),
        channel(blockIdx.x / plan.chunks * kWarpSize + threadIdx.x % kWarpSize),
        chunk(blockIdx.x % plan.chunks) {}
  __device__ std::int64_t sample(int item) const {
    return chunk * kTileWarps * kPacks + item * kTileWarps + threadIdx.x / kWarpSize;
  }
  __device__ bool has(int item) const { return channel < plan.layout.channels && sample(item) < plan.layout.batch; }
  __device__ std::int64_t offset(int item) const { return sample(item) * plan.layout.channels + channel; }
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
  __device__ bool writes() const { return threadIdx.x < kWarpSize && channel < plan.layout.channels; }
};

/// The same where whole samples fit into a block: each thread takes W neighbouring channels, and threads that lie one
/// sample's packs apart the same ones. The plan says how many packs a sample has (across) and how many samples lie side
/// by side (down). Where there are very many samples, a block takes several groups of packs, so that there are some
/// blocks to each multiprocessor, and few partial results.
template <int W>
struct Samples {
  static constexpr int kWidth = W, kPacks = 8;
  static constexpr int kChannels = W;
  const TilePlan& plan;
  std::int64_t chunk, channel;
  int row;  ///< of this thread, among the samples side by side

  static bool suits(const ChannelLayout& layout) { return layout.channels % W == 0 && layout.channels / W <= kThreads; }
  static TilePlan plan_of(const ChannelLayout& layout) {
    constexpr std::int64_t kBlocks = 256, kMost = 8;
    const std::int64_t across = layout.channels / W, down = kThreads / across;
    const std::int64_t groups = std::clamp<std::int64_t>(layout.batch / (down * kPacks * kBlocks), 1, kMost);
    TilePlan plan(layout, down * kPacks * groups);
    plan.across = static_cast<int>(across), plan.down = static_cast<int>(down), plan.groups = static_cast<int>(groups);
    return plan;
  }
  static unsigned blocks(const TilePlan& plan) { return static_cast<unsigned>(plan.chunks); }
  __device__ explicit Samples(const TilePlan& plan)
      : plan(plan), chunk(blockIdx.x), row(static_cast<int>(threadIdx.x) / plan.across) {
    channel = (static_cast<int>(threadIdx.x) - row * plan.across) * W;
  }
  __device__ std::int64_t sample(int pack) const {
    return chunk * plan.tile + static_cast<std::int64_t>(pack) * plan.down + row;
  }
  __device__ bool has(int pack) const { return row < plan.down && sample(pack) < plan.layout.batch; }
  __device__ std::int64_t offset(int pack) const { return sample(pack) * plan.layout.channels + channel; }
  /// Over the rows: those of the second half to those of the first, until one is left, which has the result. Once
  /// to a kernel, since nobody waits for the last to be read.
  template <typename C, int N>
  __device__ Sums<C, N> sum(Sums<C, N> value) const {
    __shared__ C partial[N][kThreads];
    const int here = static_cast<int>(threadIdx.x);
    for (int rows = plan.down; rows > 1; rows = (rows + 1) / 2) {
      const int half = (rows + 1) / 2;
      if (row >= half && row < rows)
#pragma unroll
        for (int n = 0; n < N; ++n) partial[n][here] = value.value[n];
      __syncthreads();
      if (row < rows - half)
#pragma unroll
        for (int n = 0; n < N; ++n) value.value[n] += partial[n][here + half * plan.across];
    }
    return value;
  }
  __device__ bool writes() const {
    return row == 0;
  }
};

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
