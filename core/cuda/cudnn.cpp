#include "lockstep/core/cuda/cudnn.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/stream.h"

namespace lockstep::cuda {
namespace {

struct Handle {
  cudnnHandle_t handle = nullptr;
  CUstream_st* stream = nullptr;  // where its work goes; a new handle's goes to the default stream
};

// Handles of threads that have ended wait here for others. Never destroyed: the driver may be gone by then.
struct Pool {
  std::mutex mutex;
  std::map<int, std::vector<Handle>> free;  // by device
};
Pool& pool() {
  static auto* pool = new Pool;
  return *pool;
}

class ThreadHandles {
 public:
  ~ThreadHandles() {
    const std::lock_guard lock(pool().mutex);
    for (const auto& [device, handle] : handles_) pool().free[device].push_back(handle);
  }

  Handle& of(int device) {
    auto found = handles_.find(device);
    if (found == handles_.end()) found = handles_.emplace(device, take(device)).first;
    return found->second;
  }

 private:
  static Handle take(int device) {
    {
      const std::lock_guard lock(pool().mutex);
      auto& free = pool().free[device];
      if (!free.empty()) {
        const Handle handle = free.back();
        free.pop_back();
        return handle;
      }
    }
    Handle made;
    // It allocates memory, which is forbidden to a thread that captures a graph unless it says so.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    LOCKSTEP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudnnStatus_t status = cudnn().cudnnCreate(&made.handle);
    LOCKSTEP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    LOCKSTEP_CUDNN_CHECK(status);
    return made;
  }

  std::map<int, Handle> handles_;
};

}  // namespace

const CudnnFunctions& cudnn() {
  static const CudnnFunctions functions;
  return functions;
}

cudnnHandle_t cudnn_handle(int device) {
  thread_local ThreadHandles handles;
  Handle& handle = handles.of(device);
  CUstream_st* const stream = Stream::current(device).handle();
  if (handle.stream != stream) {
    LOCKSTEP_CUDNN_CHECK(cudnn().cudnnSetStream(handle.handle, stream));
    handle.stream = stream;
  }
  return handle.handle;
}

namespace detail {

void throw_cudnn_error(const char* file, int line, const char* expression, cudnnStatus_t status) {
  std::string more(512, '\0');
  cudnn().cudnnGetLastErrorString(more.data(), more.size());
  more.resize(more.find('\0') == std::string::npos ? more.size() : more.find('\0'));
  lockstep::detail::throw_error(fmt::format("cuDNN call {} failed at {}:{}: {}{}{}", expression, file, line,
                                            cudnn().cudnnGetErrorString(status), more.empty() ? "" : ": ", more));
}

}  // namespace detail

}  // namespace lockstep::cuda
