// Kernels come to the emulated device when they are first launched.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/emulated/core/execution.h"
#include "lockstep/emulated/core/streams.h"

namespace lockstep::cuda::emulated {
namespace {

bool loads_eagerly() {
  static const bool eager = [] {
    const char* text = std::getenv("CUDA_MODULE_LOADING");
    return text && std::string_view(text) == "EAGER";
  }();
  return eager;
}

}  // namespace

void load_kernel(const void* kernel, CUstream_st* stream) {
  if (loads_eagerly()) return;
  static std::mutex loading;
  static auto* loaded = new std::set<std::pair<int, const void*>>;
  int device = 0;
  cudaGetDevice(&device);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const bool captures =
      stream && cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
  const std::lock_guard lock(loading);
  // Under a capture nothing waits: the driver then loads without.
  if (loaded->emplace(device, kernel).second && !captures) Streams::instance().reach_all(device);
}

}  // namespace lockstep::cuda::emulated
