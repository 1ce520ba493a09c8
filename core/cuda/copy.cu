#include <mutex>
#include <set>
#include <utility>

#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/cuda/memory.h"
#include "lockstep/core/cuda/pinned.h"
#include "lockstep/core/cuda/transpose.h"
#include "lockstep/core/error.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/integer_cast.h"

namespace lockstep::cuda {
namespace {

template <typename C>
struct Same {
  __device__ C operator()(C value) const { return value; }
};

void copy_bytes(const Tensor& source, const Tensor& target, int device) {
  const DeviceGuard guard(device);
  LOCKSTEP_CUDA_CHECK(cudaMemcpyAsync(target.raw_data(), source.raw_data(), target.nbytes(), cudaMemcpyDefault,
                                      Stream::current(device).handle()));
}

bool same_layout(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.is_contiguous() && b.is_contiguous();
}

// Casts and strides on one device, by way of what the CPU computes in.
void copy_within(const Tensor& source, const Tensor& target) {
  if (same_layout(source, target)) return copy_bytes(source, target, target.device().index);
  if (copy_transposed(source, target)) return;
  if (source.dtype() == kFloat64 || target.dtype() == kFloat64)
    return map<double>(target, Same<double>(), Input<double>(source));
  if (source.is_floating_point() || target.is_floating_point())
    return map<float>(target, Same<float>(), Input<float>(source));
  map<std::int64_t>(target, Same<std::int64_t>(), Input<std::int64_t>(source));
}

// With target's dtype and sizes, contiguous, where source is.
Tensor prepared(const Tensor& source, const Tensor& target) {
  if (same_layout(source, target)) return source;
  Tensor made = empty(target.sizes(), {.dtype = target.dtype(), .device = source.device()});
  copy_values(source, made);
  return made;
}

void copy_to_device(const Tensor& source, const Tensor& target) {
  const Tensor from = prepared(source, target);
  Tensor to = target.is_contiguous() ? target : empty_like(target);
  copy_bytes(from, to, target.device().index);
  // Pinned memory is read later; pageable memory may be too, where the device reads it by itself (Grace Hopper, HMM).
  Stream::current(target.device().index).synchronize();
  if (!to.is_same(target)) copy_within(to, target);
}

void copy_to_host(const Tensor& source, const Tensor& target) {
  const Tensor from = as_contiguous(source);
  const Tensor to = same_layout(from, target) ? target : empty(from.sizes(), {.dtype = from.dtype()});
  copy_bytes(from, to, from.device().index);
  Stream::current(from.device().index).synchronize();
  if (!to.is_same(target)) copy_values(to, target);
}

// Once for each pair: without it a copy between devices goes through the host's memory.
void enable_peer_access(int from, int to) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> seen;
  const std::lock_guard lock(mutex);
  if (!seen.insert({from, to}).second || !can_access_peer(from, to)) return;
  const DeviceGuard guard(from);
  const cudaError_t status = cudaDeviceEnablePeerAccess(to, 0);
  if (status != cudaErrorPeerAccessAlreadyEnabled) LOCKSTEP_CUDA_CHECK(status);
  cudaGetLastError();
}

void copy_between(const Tensor& source, const Tensor& target) {
  enable_peer_access(source.device().index, target.device().index);
  const Tensor from = prepared(source, target);
  const Tensor to = target.is_contiguous() ? target : empty_like(target);
  const Stream there = Stream::current(from.device().index), here = Stream::current(to.device().index);
  // The target's memory may still be in use by what its own stream does.
  Event free(to.device().index);
  free.record(here);
  there.wait(free);
  {
    const DeviceGuard guard(from.device().index);
    LOCKSTEP_CUDA_CHECK(cudaMemcpyPeerAsync(to.raw_data(), to.device().index, from.raw_data(), from.device().index,
                                            to.nbytes(), there.handle()));
  }
  Event done(from.device().index);
  done.record(there);
  here.wait(done);
  if (!to.is_same(target)) copy_within(to, target);
}

}  // namespace

void copy(const Tensor& source, const Tensor& target) {
  if (target.numel() == 0) return;
  if (source.device() == target.device()) return copy_within(source, target);
  if (source.device().is_cpu() || target.device().is_cpu()) {
    const Device device = source.device().is_cpu() ? target.device() : source.device();
    // A graph would keep the host's address, and each replay read or write what lies there then.
    if (is_capturing(device.index))
      throw Error(
          "[copy] values cannot go from " + to_string(source.device()) + " to " + to_string(target.device()) +
          " while a CUDA graph is captured: replays would use the host's memory as it is then; make them before "
          "the capture, or on the device");
  }
  if (source.device().is_cpu()) return copy_to_device(source, target);
  if (target.device().is_cpu()) return copy_to_host(source, target);
  copy_between(source, target);
}

namespace {
template <typename C>
struct Constant {
  C value;
  __device__ C operator()() const { return value; }
};
}  // namespace

void fill(const Tensor& tensor, Scalar scalar) {
  if (tensor.numel() == 0) return;
  const double value = scalar.to_double();
  if (value == 0.0 && !std::signbit(value) && tensor.is_contiguous()) {
    const Launch launch(tensor);
    LOCKSTEP_CUDA_CHECK(cudaMemsetAsync(tensor.raw_data(), 0, tensor.nbytes(), launch.stream()));
    return;
  }
  if (tensor.dtype() == kFloat64) return map<double>(tensor, Constant<double>{value});
  if (tensor.is_floating_point() || tensor.dtype() == kBool)
    return map<float>(
        tensor, Constant<float>{tensor.dtype() == kBool ? (value != 0.0 ? 1.0f : 0.0f) : static_cast<float>(value)});
  std::int64_t whole = 0;
  if (!scalar.is_floating_point())
    whole = scalar.to_int64();
  else if (tensor.dtype() == kUInt8)
    whole = integer_cast<std::uint8_t>(value);
  else
    whole = tensor.dtype() == kInt32 ? integer_cast<std::int32_t>(value) : integer_cast<std::int64_t>(value);
  map<std::int64_t>(tensor, Constant<std::int64_t>{whole});
}

}  // namespace lockstep::cuda
