#include "lockstep/core/cuda/pinned.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/cuda/check.h"
#include "lockstep/core/cuda/context.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/stream.h"

namespace lockstep::cuda {
namespace {

/// Blocks by size, a power of two; never returned.
struct PinnedMemory {
  std::mutex mutex;
  std::map<std::size_t, std::vector<void*>> free;
  std::map<const char*, std::size_t> in_use;
};

PinnedMemory& memory() {
  static auto* instance = new PinnedMemory;
  return *instance;
}

std::size_t rounded(std::size_t bytes) {
  std::size_t size = 4096;
  while (size < bytes) size *= 2;
  return size;
}

}  // namespace

Tensor empty_pinned(const Shape& sizes, DType dtype) {
  require_device(0);
  std::int64_t numel = 1;
  for (const std::int64_t size : sizes)
    LOCKSTEP_CHECK(size >= 0 && !__builtin_mul_overflow(numel, size, &numel) && numel < (std::int64_t{1} << 40),
                   "[empty_pinned] shape {} is negative or too large", to_string(sizes));
  const std::size_t bytes = rounded(static_cast<std::size_t>(numel) * element_size(dtype));
  PinnedMemory& m = memory();
  void* data = nullptr;
  {
    const std::lock_guard lock(m.mutex);
    auto& blocks = m.free[bytes];
    if (!blocks.empty()) {
      data = blocks.back();
      blocks.pop_back();
    }
  }
  if (!data) {
    const DeviceGuard guard(device_with_context());
    LOCKSTEP_CUDA_CHECK(cudaHostAlloc(&data, bytes, cudaHostAllocPortable));
  }
  {
    const std::lock_guard lock(m.mutex);
    m.in_use[static_cast<const char*>(data)] = bytes;
  }
  return from_blob(data, sizes, {.dtype = dtype}, [data, bytes] {
    PinnedMemory& m = memory();
    const std::lock_guard lock(m.mutex);
    m.in_use.erase(static_cast<const char*>(data));
    m.free[bytes].push_back(data);
  });
}

bool is_pinned(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu()) return false;
  PinnedMemory& m = memory();
  const std::lock_guard lock(m.mutex);
  return m.in_use.contains(static_cast<const char*>(tensor.storage()->data()));
}

void copy_async(const Tensor& source, const Tensor& target) {
  const Device device = source.device().is_cuda() ? source.device() : target.device();
  LOCKSTEP_CHECK(
      device.is_cuda() && source.is_contiguous() && target.is_contiguous() && source.dtype() == target.dtype() &&
          source.numel() == target.numel(),
      "[copy_async] expected contiguous tensors of one dtype and size, one of them on a CUDA device; found {} "
      "{} on {} and {} {} on {}",
      name(source.dtype()), to_string(source.sizes()), to_string(source.device()), name(target.dtype()),
      to_string(target.sizes()), to_string(target.device()));
  const Tensor& other = source.device().is_cuda() ? target : source;
  LOCKSTEP_CHECK(other.device() == device || is_pinned(other),
                 "[copy_async] the tensor on {} is not pinned; make it with empty_pinned(), or use copy_values()",
                 to_string(other.device()));
  if (source.numel() == 0) return;
  const DeviceGuard guard(device.index);
  LOCKSTEP_CUDA_CHECK(cudaMemcpyAsync(target.raw_data(), source.raw_data(), source.nbytes(), cudaMemcpyDefault,
                                      Stream::current(device.index).handle()));
}

}  // namespace lockstep::cuda
