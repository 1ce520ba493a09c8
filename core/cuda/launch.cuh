#pragma once

// How kernels are started. For .cu files only.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

inline constexpr int kThreads = 256;
inline constexpr int kWarpSize = 32;
/// Enough blocks to fill any device several times; loops take the rest in strides.
inline constexpr std::int64_t kMaxBlocks = 1 << 15;

inline unsigned blocks_for(std::int64_t count, std::int64_t per_block = kThreads) {
  return static_cast<unsigned>(std::clamp<std::int64_t>((count + per_block - 1) / per_block, 1, kMaxBlocks));
}

/// Threads of one-dimensional grids of one-dimensional blocks; a grid-stride loop is
/// `for (std::int64_t i = global_thread(); i < count; i += all_threads())`.
__device__ inline std::int64_t global_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ inline std::int64_t all_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

/// Queues kernel(arguments...) on a stream of the present device. Throws Error if it cannot be started; what goes wrong
/// later shows when somebody waits.
///
/// Each of our libraries has a CUDA runtime of its own, linked statically, which knows that library's kernels alone:
/// this must not be the one function of several libraries that the dynamic linker picks, so each file has its own.
template <typename... P, typename... A>
[[gnu::always_inline]] static inline void launch_on(CUstream_st* stream, void (*kernel)(P...), dim3 grid, dim3 block,
                                                    A&&... arguments) {
#if defined(__CUDACC__)
  kernel<<<grid, block, 0, stream>>>(static_cast<P>(std::forward<A>(arguments))...);
  LOCKSTEP_CUDA_CHECK_LAUNCH();
#else
  emulated::enqueue_kernel(kernel, grid, block, stream, std::forward<A>(arguments)...);
#endif
}

/// Where a kernel on `tensor` is launched: its device, made the present one for the lifetime of this, and that device's
/// current stream. Hidden for the same reason.
class [[gnu::visibility("hidden")]] Launch {
 public:
  explicit Launch(const Tensor& tensor)
      : guard_(tensor.device().index), stream_(Stream::current(tensor.device().index).handle()) {}
  CUstream_st* stream() const {
    return stream_;
  }

  template <typename Kernel, typename... A>
  [[gnu::always_inline]] inline void operator()(Kernel* kernel, dim3 grid, dim3 block, A&&... arguments) const {
    launch_on(stream_, kernel, grid, block, std::forward<A>(arguments)...);
  }

 private:
  DeviceGuard guard_;
  CUstream_st* stream_;
};

}  // namespace lockstep::cuda
