#pragma once

// Sums over each channel on CUDA devices. For .cu files only.

#include "lockstep/autograd/ops/support/channel_tiles.cuh"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep::cuda {

/// `values.pack<W>(offset)` gives W elements from there on, as C.
template <typename C, typename Tile, typename Values>
__global__ void channel_sums_kernel(Values values, double* partials, TilePlan plan) {
  constexpr int W = Tile::kWidth, K = Tile::kChannels;
  const Tile tile(plan);
  Sums<C, K> sums{};
  for (int g = 0; g < plan.groups; ++g)
#pragma unroll
    for (int p = 0; p < Tile::kPacks; ++p) {
      const int at = g * Tile::kPacks + p;
      if (!tile.has(at)) continue;
      const Pack<C, W> pack = values.template pack<W>(tile.offset(at));
#pragma unroll
      for (int j = 0; j < W; ++j) sums.value[j % K] += pack.value[j];
    }
  sums = tile.sum(sums);
  if (!tile.writes()) return;
#pragma unroll
  for (int k = 0; k < K; ++k)
    partials[(tile.channel + k) * plan.chunks + tile.chunk] = static_cast<double>(sums.value[k]);
}

template <typename T>
__global__ void finish_channel_sums_kernel(const double* partials, T* out, std::int64_t channels, std::int64_t chunks) {
  const std::int64_t channel = global_thread() / kWarpSize, lane = threadIdx.x % kWarpSize;
  if (channel >= channels) return;
  double sum = 0;
  for (std::int64_t k = lane; k < chunks; k += kWarpSize) sum += partials[channel * chunks + k];
  sum = warp_sum(sum);
  if (lane == 0) out[channel] = to_element<T>(static_cast<compute_t<T>>(sum));
}

/// out[c] = sum of `values` over channel c, of elements T where the values come from; see Note [Channel tiles].
/// `aligned`: packs of 16 bytes may be read.
template <typename T, typename Values>
void channel_sums(const Values& values, const Tensor& out, const ChannelLayout& layout, bool aligned) {
  if (layout.channels == 0) return;
  const Launch launch(out);
  with_tile<T>(layout, aligned, [&]<typename Tile>() {
    const TilePlan plan = Tile::plan_of(layout);
    const Tensor memory = empty({layout.channels * plan.chunks}, {.dtype = kFloat64, .device = out.device()});
    auto* partials = static_cast<double*>(memory.raw_data());
    if (plan.chunks > 0)
      launch(channel_sums_kernel<compute_t<T>, Tile, Values>, Tile::blocks(plan), kThreads, values, partials, plan);
    launch(finish_channel_sums_kernel<T>, warps_for(layout.channels), kThreads, partials, out.data<T>(),
           layout.channels, plan.chunks);
  });
}

}  // namespace lockstep::cuda
