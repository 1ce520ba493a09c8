#pragma once

// Loops over elements with values for each channel on CUDA devices. For .cu files only.

#include "lockstep/autograd/ops/support/channel_layout.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/cuda/quotient.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep::cuda {

/// Which channel the elements of a pack belong to: one, or neighbouring ones where the inner size is 1.
struct Channels {
  std::int64_t channels, inner;
  __device__ std::int64_t of(std::int64_t element) const {
    const std::int64_t row = quotient(element, inner);
    return row - quotient(row, channels) * channels;
  }
};

/// out[i] = f.at(channel of i)(in[i]...), W elements of one channel at a time, or, with kRow, of W channels.
template <int W, bool kRow, typename T, typename F, typename... In>
__global__ void channel_map_kernel(std::int64_t packs, Channels channels, F f, T* out, const In*... in) {
  using C = compute_t<T>;
  for (std::int64_t p = global_thread(); p < packs; p += all_threads()) {
    const std::int64_t first = channels.of(p * W);
    auto factors = f.at(first);
    Pack<T, W> result;
    [&](const auto&... pack) {
#pragma unroll
      for (int j = 0; j < W; ++j) {
        if (kRow && j > 0) factors = f.at(first + j);
        result.value[j] = to_element<T>(factors(from_element<C>(pack.value[j])...));
      }
    }(reinterpret_cast<const Pack<T, W>*>(in)[p]...);
    reinterpret_cast<Pack<T, W>*>(out)[p] = result;
  }
}

namespace detail {
template <typename T, typename>
using TypeOf = T;
}  // namespace detail

/// out[i] = f.at(c)(in[i]...) for all elements i, where c is i's channel; `f.at(c)` is made once for a few elements.
/// All tensors contiguous, of elements T, which are computed in compute_t<T>.
template <typename T, typename F, typename... In>
void channel_map(const Tensor& out, const ChannelLayout& layout, const F& f, const In&... in) {
  constexpr int W = 16 / sizeof(T);
  const std::int64_t count = out.numel();
  if (count == 0) return;
  const Launch launch(out);
  const Channels channels{layout.channels, layout.inner};
  const bool packed = aligned(out.raw_data(), 16) && (aligned(in.raw_data(), 16) && ...);
  const auto start = [&](auto* kernel, int width) {
    launch(kernel, blocks_for(count / width), kThreads, count / width, channels, f, out.data<T>(),
           static_cast<const T*>(in.template data<T>())...);
  };
  if (packed && layout.inner % W == 0) {
    start(channel_map_kernel<W, false, T, F, detail::TypeOf<T, In>...>, W);
  } else if (packed && layout.inner == 1 && layout.channels % W == 0) {
    start(channel_map_kernel<W, true, T, F, detail::TypeOf<T, In>...>, W);
  } else {
    start(channel_map_kernel<1, false, T, F, detail::TypeOf<T, In>...>, 1);
  }
}

}  // namespace lockstep::cuda
