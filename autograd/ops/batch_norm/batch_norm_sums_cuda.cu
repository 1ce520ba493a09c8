// Sums over each channel, as Note [Channel tiles] says; what is done element by element is in batch_norm_cuda.cu.

#include <cmath>

#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/autograd/ops/support/channel_tiles.cuh"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::kThreads;
using cuda::kWarpSize;
using cuda::Pack;
using cuda::Sums;

struct Partial {
  double first, second;
};

/// Each tile's mean, and its sum of (x - mean)^2: about a centre that is the mean but for rounding, and then corrected;
/// Chan, Golub and LeVeque, "Algorithms for computing the sample variance" (1983).
template <typename T, typename Tile>
__global__ void statistics_kernel(const T* x, Partial* partials, ChannelLayout layout, std::int64_t chunks,
                                  std::int64_t tile_size) {
  using C = compute_t<T>;
  constexpr int W = Tile::kWidth, K = Tile::kChannels, kPacks = Tile::kItems / W;
  const Tile tile(layout, chunks);
  Pack<T, W> packs[kPacks];
  Sums<C, K> center{};
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!tile.has(p)) continue;
    packs[p] = *reinterpret_cast<const Pack<T, W>*>(x + tile.offset(p));
#pragma unroll
    for (int j = 0; j < W; ++j) center.value[j % K] += from_element<C>(packs[p].value[j]);
  }
  const double count = cuda::tile_count(tile.chunk, tile_size, layout.batch * layout.inner);
  center = tile.sum(center);
#pragma unroll
  for (int k = 0; k < K; ++k) center.value[k] /= static_cast<C>(count);
  Sums<C, 2 * K> moments{};  // of each channel: of the differences, and of their squares
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    if (!tile.has(p)) continue;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C difference = from_element<C>(packs[p].value[j]) - center.value[j % K];
      moments.value[j % K * 2] += difference;
      moments.value[j % K * 2 + 1] += difference * difference;
    }
  }
  moments = tile.sum(moments);
  if (!tile.writes()) return;
#pragma unroll
  for (int k = 0; k < K; ++k) {
    const double rest = static_cast<double>(moments.value[k * 2]);
    partials[(tile.channel + k) * chunks + tile.chunk] = {
        static_cast<double>(center.value[k]) + rest / count,
        static_cast<double>(moments.value[k * 2 + 1]) - rest * rest / count};
  }
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
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) sum += partials[k].first * cuda::tile_count(k, tile, count);
  const double center = cuda::warp_sum(sum) / static_cast<double>(count);
  double squares = 0;
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) {
    const double difference = partials[k].first - center;
    squares += partials[k].second + difference * difference * cuda::tile_count(k, tile, count);
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
  constexpr int W = Tile::kWidth, K = Tile::kChannels;
  const Tile tile(layout, chunks);
  C center[K];
#pragma unroll
  for (int k = 0; k < K; ++k) center[k] = tile.channel < layout.channels ? mean[tile.channel + k] : C(0);
  Sums<C, 2 * K> sums{};
#pragma unroll 16
  for (int p = 0; p < Tile::kItems / W; ++p) {
    if (!tile.has(p)) continue;
    const std::int64_t at = tile.offset(p);
    const auto incoming = *reinterpret_cast<const Pack<T, W>*>(grad + at);
    const auto values = *reinterpret_cast<const Pack<T, W>*>(x + at);
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const C g = from_element<C>(incoming.value[j]);
      sums.value[j % K * 2] += g;
      sums.value[j % K * 2 + 1] += g * (from_element<C>(values.value[j]) - center[j % K]);
    }
  }
  sums = tile.sum(sums);
  if (!tile.writes()) return;
#pragma unroll
  for (int k = 0; k < K; ++k)
    partials[(tile.channel + k) * chunks + tile.chunk] = {static_cast<double>(sums.value[k * 2]),
                                                          static_cast<double>(sums.value[k * 2 + 1])};
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

Tensor make_partials(const Tensor& like, std::int64_t count) {
  return empty({count, 2}, {.dtype = kFloat64, .device = like.device()});
}

}  // namespace

void batch_norm_statistics_cuda(const Tensor& input, const Tensor& mean, const Tensor& var, ChannelLayout layout) {
  cuda::require_not_portable("batch_norm");
  if (layout.channels == 0) return;
  if (layout.count() == 0) {
    fill_values(mean, 0);
    fill_values(var, 0);
    return;
  }
  const cuda::Launch launch(input);
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    cuda::with_tile<T>(layout, cuda::aligned(input.raw_data(), 16), [&]<typename Tile>() {
      const std::int64_t chunks = cuda::tiles_of<Tile>(layout), tile_size = Tile::tile(layout);
      const Tensor partials = make_partials(input, layout.channels * chunks);
      auto* parts = static_cast<Partial*>(partials.raw_data());
      launch(statistics_kernel<T, Tile>, Tile::blocks(layout, chunks), kThreads, input.data<T>(), parts, layout, chunks,
             tile_size);
      launch(finish_statistics_kernel<C>, cuda::warps_for(layout.channels), kThreads, parts, mean.data<C>(),
             var.data<C>(), layout, chunks, tile_size);
    });
  });
}

void batch_norm_sums_cuda(const Tensor& grad, const Tensor& input, const Tensor& mean, const Tensor& var,
                          const Tensor& sum_grad, const Tensor& sum_grad_normalized, double eps, ChannelLayout layout) {
  cuda::require_not_portable("the gradient of batch_norm");
  if (layout.channels == 0) return;
  const cuda::Launch launch(input);
  dispatch_floating(input.dtype(), "batch_norm", [&]<typename T>() {
    using C = compute_t<T>;
    const bool aligned = cuda::aligned(grad.raw_data(), 16) && cuda::aligned(input.raw_data(), 16);
    cuda::with_tile<T>(layout, aligned, [&]<typename Tile>() {
      const std::int64_t chunks = cuda::tiles_of<Tile>(layout);
      const Tensor partials = make_partials(input, layout.channels * chunks);
      auto* parts = static_cast<Partial*>(partials.raw_data());
      if (chunks > 0)
        launch(sums_kernel<T, Tile>, Tile::blocks(layout, chunks), kThreads, grad.data<T>(), input.data<T>(),
               mean.data<C>(), parts, layout, chunks);
      launch(finish_sums_kernel<C>, cuda::warps_for(layout.channels), kThreads, parts, var.data<C>(), eps,
             sum_grad.data<C>(), sum_grad_normalized.data<C>(), layout.channels, chunks);
    });
  });
}

}  // namespace lockstep
