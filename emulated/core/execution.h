#pragma once

#include <functional>

struct CUstream_st;

namespace lockstep::cuda::emulated {

/// Note [Emulated device]
/// LOCKSTEP_CUDA=EMULATED builds everything that is written for CUDA, host code and kernels, for a device that this
/// folder emulates on the CPU: no toolkit, driver or GPU is needed. It is there to test that code, not to train with. A
/// process has devices when LOCKSTEP_EMULATED_CUDA_DEVICES says how many.
///
/// It is made to show mistakes. Memory of the device cannot be touched by the host: outside of kernels and copies it is
/// protected, and every allocation ends at a page that always is. Work put on a stream is done as late as it may be,
/// when somebody waits for it, and then only what that wait asks for: a missing event shows in the results. (A thread
/// beside does what has waited for some milliseconds, for those who wait for another process.) What a stream under
/// capture forbids fails as it does on a GPU. The threads of a block are fibers, so barriers and warp shuffles mean
/// what they mean there; threads that miss a barrier which others wait at are an error.
///
/// It shows nothing about speed, about libraries (cuBLASLt, cuDNN and NCCL are stood in for), about data races within a
/// kernel, and about what nvcc makes of the code: STATUS.md counts nothing as run on a GPU that ran here.

inline constexpr int kWarp = 32;

struct Index3 {
  unsigned x = 1, y = 1, z = 1;
  Index3() = default;
  Index3(unsigned x, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct ThreadState {
  Index3 thread, block, block_dim, grid_dim;
  int linear() const { return static_cast<int>((thread.z * block_dim.y + thread.y) * block_dim.x + thread.x); }
  int lane() const { return linear() % kWarp; }
};
/// The thread of a kernel that this thread of the host is running.
ThreadState& this_thread();

void block_barrier();
/// Gives the words of all lanes of the warp (0 for those that have ended) once each has come.
const unsigned long long* warp_exchange(unsigned long long word);

/// Runs body() for every thread of every block. Throws Error if a block cannot go on, see above.
void run_grid(Index3 grid, Index3 block, const std::function<void()>& body);

/// Puts work on a stream of the present device. With a false result it is asked again later: it waits for somebody.
void enqueue(CUstream_st* stream, std::function<bool()> work);
/// The same for any device.
void enqueue(int device, CUstream_st* stream, std::function<bool()> work);

/// Loads a kernel onto the present device at its first launch there, unless CUDA_MODULE_LOADING=EAGER: as CUDA does,
/// one at a time in the process, and when all work of the device is done.
void load_kernel(const void* kernel, CUstream_st* stream);

/// What `launch()` of core/cuda/launch.cuh does here.
template <typename... P, typename... A>
void enqueue_kernel(void (*kernel)(P...), Index3 grid, Index3 block, CUstream_st* stream, A&&... arguments) {
  load_kernel(reinterpret_cast<const void*>(kernel), stream);
  enqueue(stream, [kernel, grid, block, ... values = P(arguments)] {
    run_grid(grid, block, [&] { kernel(values...); });
    return true;
  });
}

}  // namespace lockstep::cuda::emulated

using dim3 = lockstep::cuda::emulated::Index3;
#define threadIdx (::lockstep::cuda::emulated::this_thread().thread)
#define blockIdx (::lockstep::cuda::emulated::this_thread().block)
#define blockDim (::lockstep::cuda::emulated::this_thread().block_dim)
#define gridDim (::lockstep::cuda::emulated::this_thread().grid_dim)
