#include "lockstep/core/cuda/stream.h"

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/core/computation.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/context.h"
#include "lockstep/core/cuda/cuda.h"
#include "lockstep/core/cuda/device.h"

namespace lockstep::cuda {
namespace {

constexpr int kPoolSize = 16;

struct Pool {
  std::mutex mutex;
  std::array<std::array<cudaStream_t, kPoolSize>, 2> streams{};
  std::array<int, 2> next{};
};

Pool& pool_of(int device) {
  static std::vector<std::unique_ptr<Pool>>& pools = *[] {
    auto* made = new std::vector<std::unique_ptr<Pool>>;
    for (int i = 0; i < device_count(); ++i) made->push_back(std::make_unique<Pool>());
    return made;
  }();
  require_device(device);
  return *pools[static_cast<std::size_t>(device)];
}

/// By device; devices beyond the end are on their default stream.
thread_local std::vector<cudaStream_t> current_streams;

cudaStream_t make_stream(int device, bool high_priority) {
  require_device(device);
  const DeviceGuard guard(device);
  int lowest = 0, highest = 0;
  LOCKSTEP_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  LOCKSTEP_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high_priority ? highest : lowest));
  return stream;
}

}  // namespace

Stream Stream::create(int device, bool high_priority) {
  return {device, make_stream(device, high_priority)};
}

Stream Stream::default_of(int device) {
  return {device, nullptr};
}

Stream Stream::current(int device) {
  const auto index = static_cast<std::size_t>(device);
  return {device, index < current_streams.size() ? current_streams[index] : nullptr};
}

Stream Stream::from_pool(int device, bool high_priority) {
  Pool& pool = pool_of(device);
  const std::lock_guard lock(pool.mutex);
  int& next = pool.next[high_priority];
  cudaStream_t& stream = pool.streams[high_priority][static_cast<std::size_t>(next)];
  if (!stream) {
    const DeviceGuard guard(device);
    int lowest = 0, highest = 0;
    LOCKSTEP_CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
    LOCKSTEP_CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, high_priority ? highest : lowest));
  }
  next = (next + 1) % kPoolSize;
  return {device, stream};
}

void Stream::synchronize() const {
  Computation::settle_own();
  const DeviceGuard guard(device_);
  LOCKSTEP_CUDA_CHECK(cudaStreamSynchronize(handle_));
}

void synchronize(int device) {
  require_device(device);
  Computation::settle_own();
  const DeviceGuard guard(device);
  LOCKSTEP_CUDA_CHECK(cudaDeviceSynchronize());
}

void Stream::wait(const Event& event) const {
  const DeviceGuard guard(device_);
  LOCKSTEP_CUDA_CHECK(cudaStreamWaitEvent(handle_, event.handle(), 0));
}

bool Stream::is_capturing() const {
  if (!handle_) return false;  // the default stream cannot be captured
  const DeviceGuard guard(device_);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  LOCKSTEP_CUDA_CHECK(cudaStreamIsCapturing(handle_, &status));
  return status != cudaStreamCaptureStatusNone;
}

Event::Event(int device, bool timing) : device_(device) {
  const DeviceGuard guard(device);
  LOCKSTEP_CUDA_CHECK(cudaEventCreateWithFlags(&handle_, timing ? cudaEventDefault : cudaEventDisableTiming));
}

Event::~Event() {
  if (handle_) cudaEventDestroy(handle_);
}

Event::Event(Event&& other) noexcept : device_(other.device_), handle_(std::exchange(other.handle_, nullptr)) {}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(const Stream& stream) {
  Computation::settle_own();
  const DeviceGuard guard(device_);
  LOCKSTEP_CUDA_CHECK(cudaEventRecord(handle_, stream.handle()));
}

bool Event::is_done() const {
  const DeviceGuard guard(device_);
  const cudaError_t status = cudaEventQuery(handle_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();  // no failure, and nothing for a later call to find
    return false;
  }
  LOCKSTEP_CUDA_CHECK(status);
  return true;
}

void Event::synchronize() const {
  const DeviceGuard guard(device_);
  LOCKSTEP_CUDA_CHECK(cudaEventSynchronize(handle_));
}

double Event::elapsed_ms(const Event& start) const {
  const DeviceGuard guard(device_);
  float milliseconds = 0;
  LOCKSTEP_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.handle_, handle_));
  return milliseconds;
}

DeviceGuard::DeviceGuard(int device) {
  int present = 0;
  LOCKSTEP_CUDA_CHECK(cudaGetDevice(&present));
  if (present == device) return;
  LOCKSTEP_CUDA_CHECK(cudaSetDevice(device));
  previous_ = present;
}

DeviceGuard::~DeviceGuard() {
  if (previous_ >= 0 && has_context(previous_)) cudaSetDevice(previous_);
}

StreamGuard::StreamGuard(const Stream& stream) : device_(stream.device()), previous_(Stream::current(stream.device())) {
  const auto index = static_cast<std::size_t>(stream.device());
  if (index >= current_streams.size()) current_streams.resize(index + 1);
  current_streams[index] = stream.handle();
}

StreamGuard::~StreamGuard() {
  current_streams[static_cast<std::size_t>(previous_.device())] = previous_.handle();
}

}  // namespace lockstep::cuda
