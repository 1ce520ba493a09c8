#pragma once

// Sums over each channel on CUDA devices. For .cu files only.

#include "lockstep/autograd/ops/support/channel_tiles.cuh"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"

namespace lockstep::cuda {

/// `values.pack<W>(offset)` gives W elements from there on, as C.
template <typename C, typename Tile, typename Values>
__global__ void channel_sums_kernel(Values values, double* partials, ChannelLayout layout, std::int64_t chunks) {
  constexpr int W = Tile::kWidth, K = Tile::kChannels;
  const Tile tile(layout, chunks);
  Sums<C, K> sums{};
#pragma unroll 16
  for (int p = 0; p < Tile::kItems / W; ++p) {
    if (!tile.has(p)) continue;
    const Pack<C, W> pack = values.template pack<W>(tile.offset(p));
#pragma unroll
    for (int j = 0; j < W; ++j) sums.value[j % K] += pack.value[j];
  }
  sums = tile.sum(sums);
  if (!tile.writes()) return;
#pragma unroll
  for (int k = 0; k < K; ++k) partials[(tile.channel + k) * chunks + tile.chunk] = static_cast<double>(sums.value[k]);
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
    const std::int64_t chunks = tiles_of<Tile>(layout);
    const Tensor memory = empty({layout.channels * chunks}, {.dtype = kFloat64, .device = out.device()});
    auto* partials = static_cast<double*>(memory.raw_data());
    if (chunks > 0)
      launch(channel_sums_kernel<compute_t<T>, Tile, Values>, Tile::blocks(layout, chunks), kThreads, values, partials,
             layout, chunks);
    launch(finish_channel_sums_kernel<T>, warps_for(layout.channels), kThreads, partials, out.data<T>(),
           layout.channels, chunks);
  });
}

}  // namespace lockstep::cuda
