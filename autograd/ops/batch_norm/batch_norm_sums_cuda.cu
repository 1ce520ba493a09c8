// Sums over each channel. A block takes a tile of one channel (or of 32 neighbouring ones where the inner size is 1)
// into registers, so that memory is read once, and leaves partial results in float64; a warp for each channel adds
// these up in a fixed order. How the work is cut is a function of the shape alone.

#include <cmath>

#include "autograd/ops/batch_norm/batch_norm_kernels.h"
#include "core/copy.h"
#include "core/cuda/dispatch.cuh"
#include "core/cuda/element.cuh"
#include "core/cuda/reduce.cuh"
#include "core/factories.h"

namespace lockstep {
namespace {

using cuda::compute_t;
using cuda::from_element;
using cuda::kThreads;
using cuda::kWarpSize;
using cuda::Pack;
using cuda::Sums;

constexpr int kItems = 16;  // elements to a thread
constexpr int kWarps = kThreads / kWarpSize;
constexpr std::int64_t kPlaneTile = static_cast<std::int64_t>(kThreads) * kItems;
constexpr std::int64_t kColumnTile = static_cast<std::int64_t>(kWarps) * kItems;

/// A block's tile of one channel: elements of its planes, one sample after the other, W at a time.
template <int W>
struct Planes {
  static constexpr int kWidth = W;
  static constexpr std::int64_t kTile = kPlaneTile;
  ChannelLayout layout;
  std::int64_t channel, chunk;

  static std::int64_t blocks(const ChannelLayout& layout, std::int64_t chunks) { return layout.channels * chunks; }
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
    return cuda::block_sum(value);
  }
  __device__ bool writes() const { return threadIdx.x == 0; }
};

/// The same where the inner size is 1: lanes stand for neighbouring channels, warps for samples.
struct Columns {
  static constexpr int kWidth = 1;
  static constexpr std::int64_t kTile = kColumnTile;
  ChannelLayout layout;
  std::int64_t channel, chunk;

  static std::int64_t blocks(const ChannelLayout& layout, std::int64_t chunks) {
    return (layout.channels + kWarpSize - 1) / kWarpSize * chunks;
  }
  __device__ Columns(const ChannelLayout& layout, std::int64_t chunks)
      : layout(layout),
        channel(blockIdx.x / chunks * kWarpSize + threadIdx.x % kWarpSize),
        chunk(blockIdx.x % chunks) {}
  __device__ std::int64_t sample(int item) const { return chunk * kTile + item * kWarps + threadIdx.x / kWarpSize; }
  __device__ bool has(int item) const { return channel < layout.channels && sample(item) < layout.batch; }
  __device__ std::int64_t offset(int item) const { return sample(item) * layout.channels + channel; }
  /// Over the warps, lane by lane.
  template <typename S>
  __device__ S sum(S value) const {
    __shared__ S partial[kWarps][kWarpSize];
    const unsigned lane = threadIdx.x % kWarpSize;
    __syncthreads();  // all have read what an earlier call left
    partial[threadIdx.x / kWarpSize][lane] = value;
    __syncthreads();
    value = partial[0][lane];
    for (int w = 1; w < kWarps; ++w) value = value + partial[w][lane];
    return value;
  }
  __device__ bool writes() const { return threadIdx.x < kWarpSize && channel < layout.channels; }
};

struct Partial {
  double first, second;
};

__device__ double tile_count(std::int64_t chunk, std::int64_t tile, std::int64_t count) {
  const std::int64_t rest = count - chunk * tile;
  return static_cast<double>(rest < tile ? rest : tile);
}

/// Each tile's mean, and its sum of (x - mean)^2: about a centre that is the mean but for rounding, and then corrected;
/// Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983).
template <typename T, typename Tile>
__global__ void statistics_kernel(const T* x, Partial* partials, ChannelLayout layout, std::int64_t chunks) {
  using C = compute_t<T>;
  constexpr int W = Tile::kWidth;
  const Tile tile(layout, chunks);
  C values[kItems], sum = 0;
#pragma unroll
  for (int p = 0; p < kItems / W; ++p) {
    if (!tile.has(p)) continue;
    const auto pack = *reinterpret_cast<const Pack<T, W>*>(x + tile.offset(p));
#pragma unroll
    for (int j = 0; j < W; ++j) sum += values[p * W + j] = from_element<C>(pack.value[j]);
  }
  const double count = tile_count(tile.chunk, Tile::kTile, layout.batch * layout.inner);
  const C center = tile.sum(sum) / static_cast<C>(count);
  Sums<C, 2> moments{{C(0), C(0)}};
#pragma unroll
  for (int p = 0; p < kItems / W; ++p) {
    if (!tile.has(p)) continue;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C difference = values[p * W + j] - center;
      moments.value[0] += difference;
      moments.value[1] += difference * difference;
    }
  }
  moments = tile.sum(moments);
  if (!tile.writes()) return;
  const double rest = static_cast<double>(moments.value[0]);
  partials[tile.channel * chunks + tile.chunk] = {static_cast<double>(center) + rest / count,
                                                  static_cast<double>(moments.value[1]) - rest * rest / count};
}

/// One warp to a channel.
template <typename C>
__global__ void finish_statistics_kernel(const Partial* partials, C* mean, C* var, ChannelLayout layout,
                                         std::int64_t chunks, std::int64_t tile) {
  const std::int64_t channel = cuda::global_thread() / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (channel >= layout.channels) return;
  const std::int64_t count = layout.batch * layout.inner;
  partials += channel * chunks;
  double sum = 0;
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) sum += partials[k].first * tile_count(k, tile, count);
  const double center = cuda::warp_sum(sum) / static_cast<double>(count);
  double squares = 0;
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) {
    const double difference = partials[k].first - center;
    squares += partials[k].second + difference * difference * tile_count(k, tile, count);
  }
  squares = cuda::warp_sum(squares);
  if (lane != 0) return;
  mean[channel] = static_cast<C>(center);
  var[channel] = static_cast<C>(squares > 0 || squares != squares ? squares / static_cast<double>(count) : 0.0);
}

template <typename T, typename Tile>
__global__ void sums_kernel(const T* grad, const T* x, const compute_t<T>* mean, Partial* partials,
                            ChannelLayout layout, std::int64_t chunks) {
  using C = compute_t<T>;
  constexpr int W = Tile::kWidth;
  const Tile tile(layout, chunks);
  const C center = tile.channel < layout.channels ? mean[tile.channel] : C(0);
  Sums<C, 2> sums{{C(0), C(0)}};
#pragma unroll
  for (int p = 0; p < kItems / W; ++p) {
    if (!tile.has(p)) continue;
    const std::int64_t at = tile.offset(p);
    const auto incoming = *reinterpret_cast<const Pack<T, W>*>(grad + at);
    const auto values = *reinterpret_cast<const Pack<T, W>*>(x + at);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C g = from_element<C>(incoming.value[j]);
      sums.value[0] += g;
      sums.value[1] += g * (from_element<C>(values.value[j]) - center);
    }
  }
  sums = tile.sum(sums);
  if (tile.writes())
    partials[tile.channel * chunks + tile.chunk] = {static_cast<double>(sums.value[0]),
                                                    static_cast<double>(sums.value[1])};
}

template <typename C>
__global__ void finish_sums_kernel(const Partial* partials, const C* var, double eps, C* sum_grad,
                                   C* sum_grad_normalized, std::int64_t channels, std::int64_t chunks) {
  const std::int64_t channel = cuda::global_thread() / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (channel >= channels) return;
  Sums<double, 2> sums{{0.0, 0.0}};
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) {
    sums.value[0] += partials[channel * chunks + k].first;
    sums.value[1] += partials[channel * chunks + k].second;
  }
  sums = cuda::warp_sum(sums);
  if (lane != 0) return;
  sum_grad[channel] = static_cast<C>(sums.value[0]);
  sum_grad_normalized[channel] = static_cast<C>(sums.value[1] / std::sqrt(static_cast<double>(var[channel]) + eps));
}

Tensor make_partials(const Tensor& like, std::int64_t channels, std::int64_t chunks) {
  return empty({channels * chunks, 2}, {.dtype = kFloat64, .device = like.device()});
}

/// Calls run.template operator()<Tile>() with the tile that suits layout and memory.
template <typename T, typename F>
void with_tile(const ChannelLayout& layout, bool aligned, F&& run) {
  constexpr int kWidth = 16 / sizeof(T);
  if (layout.inner == 1) {
    run.template operator()<Columns>();
  } else if (aligned && layout.inner % kWidth == 0) {
    run.template operator()<Planes<kWidth>>();
  } else {
    run.template operator()<Planes<1>>();
  }
}

unsigned warps_for(std::int64_t channels) {
  return static_cast<unsigned>((channels + kWarps - 1) / kWarps);
}

}  // namespace

void batch_norm_statistics_cuda(const Tensor& input, const Tensor& mean, const Tensor& var, ChannelLayout layout) {
  if (layout.channels == 0) return;
  if (layout.count() == 0) {
    fill_values(mean, 0);
    fill_values(var, 0);
    return;
  }
  const cuda::Launch launch(input);
  cuda::dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    with_tile<T>(layout, cuda::aligned(input.raw_data(), 16), [&]<typename Tile>() {
      const std::int64_t chunks = (layout.count() + Tile::kTile - 1) / Tile::kTile;
      const Tensor partials = make_partials(input, layout.channels, chunks);
      auto* parts = static_cast<Partial*>(partials.raw_data());
      launch(statistics_kernel<T, Tile>, static_cast<unsigned>(Tile::blocks(layout, chunks)), kThreads, input.data<T>(),
             parts, layout, chunks);
      launch(finish_statistics_kernel<C>, warps_for(layout.channels), kThreads, parts, mean.data<C>(), var.data<C>(),
             layout, chunks, Tile::kTile);
    });
  });
}

void batch_norm_sums_cuda(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                          const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps, ChannelLayout layout) {
  if (layout.channels == 0) return;
  const cuda::Launch launch(input);
  cuda::dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const bool aligned = cuda::aligned(grad.raw_data(), 16) && cuda::aligned(input.raw_data(), 16);
    with_tile<T>(layout, aligned, [&]<typename Tile>() {
      const std::int64_t chunks = (layout.count() + Tile::kTile - 1) / Tile::kTile;
      const Tensor partials = make_partials(input, layout.channels, chunks);
      auto* parts = static_cast<Partial*>(partials.raw_data());
      if (chunks > 0)
        launch(sums_kernel<T, Tile>, static_cast<unsigned>(Tile::blocks(layout, chunks)), kThreads, grad.data<T>(),
               input.data<T>(), mean.data<C>(), parts, layout, chunks);
      launch(finish_sums_kernel<C>, warps_for(layout.channels), kThreads, parts, var.data<C>(), eps, sum_grad.data<C>(),
             sum_grad_normalized.data<C>(), layout.channels, chunks);
    });
  });
}

}  // namespace lockstep
