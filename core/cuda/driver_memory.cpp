// Device memory from the CUDA runtime.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/caching_allocator.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/environment.h"

namespace lockstep::cuda {
namespace {

class DriverMemory final : public DeviceMemory {
 public:
  void* allocate(int device, std::size_t bytes) override {
    const DeviceGuard guard(device);
    void* data = nullptr;
    // Under a capture the runtime forbids what waits for the device. cudaMalloc does not.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    LOCKSTEP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    const cudaError_t status = cudaMalloc(&data, bytes);
    LOCKSTEP_CUDA_CHECK(cudaThreadExchangeStreamCaptureMode(&mode));
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    LOCKSTEP_CUDA_CHECK(status);
    return data;
  }

  void release(int device, void* data) noexcept override {
    if (cudaSetDevice(device) == cudaSuccess) cudaFree(data);
  }

  Info info(int device) override {
    const DeviceGuard guard(device);
    Info info;
    LOCKSTEP_CUDA_CHECK(cudaMemGetInfo(&info.free, &info.total));
    return info;
  }

  Handle current_stream(int device) override { return Stream::current(device).handle(); }

  bool is_capturing(int device, Handle stream) override {
    if (!stream) return false;  // the default stream cannot be captured
    const DeviceGuard guard(device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    LOCKSTEP_CUDA_CHECK(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status));
    return status != cudaStreamCaptureStatusNone;
  }

  Handle record(int device, Handle stream) override {
    const DeviceGuard guard(device);
    cudaEvent_t event = nullptr;
    LOCKSTEP_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    LOCKSTEP_CUDA_CHECK(cudaEventRecord(event, static_cast<cudaStream_t>(stream)));
    return event;
  }

  bool is_done(int device, Handle event) override {
    const DeviceGuard guard(device);
    const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event));
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    LOCKSTEP_CUDA_CHECK(status);
    return true;
  }

  void wait(int device, Handle event) override {
    const DeviceGuard guard(device);
    LOCKSTEP_CUDA_CHECK(cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
  }
  void destroy(Handle event) noexcept override { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
};

/// Every block from the driver and back to it.
class PlainAllocator final : public Allocator {
 public:
  explicit PlainAllocator(int devices) : stats_(static_cast<std::size_t>(devices)) {}

  void* allocate(std::size_t bytes, Device device) override {
    require_device(device.index);
    if (bytes == 0) return nullptr;
    void* data = memory_.allocate(device.index, bytes);
    const std::lock_guard lock(mutex_);
    AllocatorStats& stats = stats_[static_cast<std::size_t>(device.index)];
    LOCKSTEP_CHECK(data, "{} is out of memory: {} bytes were asked for; this process uses {}", to_string(device), bytes,
                   stats.in_use);
    stats.in_use += bytes;
    stats.peak = std::max(stats.peak, stats.in_use);
    ++stats.system_allocations;
    return data;
  }

  void deallocate(void* data, std::size_t bytes, Device device) noexcept override {
    if (!data) return;
    memory_.release(device.index, data);  // waits for the device
    const std::lock_guard lock(mutex_);
    stats_[static_cast<std::size_t>(device.index)].in_use -= bytes;
  }

  AllocatorStats stats(Device device) const override {
    require_device(device.index);
    const std::lock_guard lock(mutex_);
    return stats_[static_cast<std::size_t>(device.index)];
  }

  void reset_peak(Device device) override {
    require_device(device.index);
    const std::lock_guard lock(mutex_);
    AllocatorStats& stats = stats_[static_cast<std::size_t>(device.index)];
    stats.peak = stats.in_use;
  }

  void empty_cache() override {}

 private:
  DriverMemory memory_;
  mutable std::mutex mutex_;
  std::vector<AllocatorStats> stats_;
};

bool caches() {
  static const bool value = environment_flag("LOCKSTEP_CUDA_MEMORY_CACHE", /*unset=*/true);
  return value;
}

// Neither is destroyed: tensors in static variables may outlive them otherwise.
CachingAllocator& caching_allocator() {
  static auto* allocator = new CachingAllocator(std::make_unique<DriverMemory>(), device_count());
  return *allocator;
}
PlainAllocator& plain_allocator() {
  static auto* allocator = new PlainAllocator(device_count());
  return *allocator;
}

}  // namespace

Allocator& device_allocator() {
  if (!is_available()) require_device(0);
  if (caches()) return caching_allocator();
  return plain_allocator();
}

void record_stream(const Tensor& tensor, const Stream& stream) {
  if (caches() && tensor.numel() > 0)
    caching_allocator().record_stream(tensor.raw_data(), tensor.device(), stream.handle());
}

MemoryHold::MemoryHold(const Stream& stream) : stream_(stream) {
  LOCKSTEP_CHECK(caches(), "a graph cannot be captured with LOCKSTEP_CUDA_MEMORY_CACHE=0; unset it, or use no graph");
  caching_allocator().hold_stream({kCUDA, stream.device()}, stream.handle());
}

MemoryHold::~MemoryHold() {
  caching_allocator().release_stream({kCUDA, stream_.device()}, stream_.handle());
}

}  // namespace lockstep::cuda
