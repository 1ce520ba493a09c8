#pragma once

// Loops over elements with values for each channel on CUDA devices. For .cu files only.

#include <algorithm>

#include "lockstep/autograd/ops/support/channel_layout.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/quotient.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep::cuda {

/// Which channel the elements of a pack belong to.
struct Channels {
  std::int64_t channels, inner;
  __device__ std::int64_t of(std::int64_t element) const {
    const std::int64_t row = quotient(element, inner);
    return row - quotient(row, channels) * channels;
  }
};

/// out[i] = f(f.at(channel of i), in[i]...), W elements of one channel at a time.
template <int W, typename T, typename F, typename... In>
__global__ void channel_map_kernel(std::int64_t packs, Channels channels, F f, T* out, const In*... in) {
  using C = compute_t<T>;
  for (std::int64_t p = global_thread(); p < packs; p += all_threads()) {
    const auto factors = f.at(channels.of(p * W));
    Pack<T, W> result;
    [&](const auto&... pack) {
#pragma unroll
      for (int j = 0; j < W; ++j) result.value[j] = to_element<T>(f(factors, from_element<C>(pack.value[j])...));
    }(reinterpret_cast<const Pack<T, W>*>(in)[p]...);
    reinterpret_cast<Pack<T, W>*>(out)[p] = result;
  }
}

template <typename T, int W, int N>
struct PacksOf {
  Pack<T, W> pack[N];
};

/// Bytes of shared memory for a block's factors.
inline constexpr std::size_t kFactorBytes = 40960;

/// The same where the inner size is 1: a thread takes the same W channels of some rows, kAhead of which it reads
/// together. There are at least as many threads as packs to a row; all channels' factors fit into kFactorBytes.
template <int W, typename T, typename F, typename... In>
__global__ void channel_rows_kernel(std::int64_t packs, std::int64_t row_packs, F f, T* out, const In*... in) {
  using C = compute_t<T>;
  constexpr int kAhead = 4;
  const std::int64_t step = all_threads() / row_packs * row_packs, first = global_thread();
  using Factors = decltype(f.at(first));
  alignas(16) __shared__ unsigned char shared[kFactorBytes];
  auto* const all = reinterpret_cast<Factors*>(shared);
  for (std::int64_t c = threadIdx.x; c < row_packs * W; c += kThreads) all[c] = f.at(c);
  __syncthreads();
  if (first >= step) return;
  Factors factors[W];
#pragma unroll
  for (int j = 0; j < W; ++j) factors[j] = all[first % row_packs * W + j];
  for (std::int64_t p = first; p < packs; p += step * kAhead) {
    const auto load = [&](const T* from) {
      PacksOf<T, W, kAhead> read;
#pragma unroll
      for (int u = 0; u < kAhead; ++u)
        if (p + u * step < packs) read.pack[u] = reinterpret_cast<const Pack<T, W>*>(from)[p + u * step];
      return read;
    };
    [&](const auto&... read) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        if (p + u * step >= packs) break;
        Pack<T, W> result;
#pragma unroll
        for (int j = 0; j < W; ++j)
          result.value[j] = to_element<T>(f(factors[j], from_element<C>(read.pack[u].value[j])...));
        reinterpret_cast<Pack<T, W>*>(out)[p + u * step] = result;
      }
    }(load(in)...);
  }
}

namespace detail {
template <typename T, typename>
using TypeOf = T;
}  // namespace detail

/// out[i] = f(f.at(c), in[i]...) for all elements i, where c is i's channel; `f.at(c)` is made once for a few elements.
/// All tensors contiguous, of elements T, which are computed in compute_t<T>.
template <typename T, typename F, typename... In>
void channel_map(const Tensor& out, const ChannelLayout& layout, const F& f, const In&... in) {
  constexpr int W = 16 / sizeof(T);
  const std::int64_t count = out.numel();
  if (count == 0) return;
  const Launch launch(out);
  const Channels channels{layout.channels, layout.inner};
  const bool packed = aligned(out.raw_data(), 16) && (aligned(in.raw_data(), 16) && ...);
  const auto start = [&](auto* kernel, unsigned blocks, std::int64_t packs, auto where) {
    launch(kernel, blocks, kThreads, packs, where, f, out.data<T>(), static_cast<const T*>(in.template data<T>())...);
  };
  if (packed && layout.inner % W == 0) {
    start(channel_map_kernel<W, T, F, detail::TypeOf<T, In>...>, blocks_for(count / W), count / W, channels);
  } else if (packed && layout.inner == 1 && layout.channels % W == 0 &&
             layout.channels * sizeof(f.at(0)) <= kFactorBytes) {
    // As many as run at once on a large device, since each block begins by making all factors.
    constexpr unsigned kBlocks = 264;
    const std::int64_t packs = count / W, row_packs = layout.channels / W;
    start(channel_rows_kernel<W, T, F, detail::TypeOf<T, In>...>,
          std::max(std::min(blocks_for(packs), kBlocks), blocks_for(row_packs)), packs, row_packs);
  } else {
    start(channel_map_kernel<1, T, F, detail::TypeOf<T, In>...>, blocks_for(count), count, channels);
  }
}

}  // namespace lockstep::cuda
