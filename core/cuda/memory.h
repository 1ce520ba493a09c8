#pragma once

#include <cstddef>

#include "lockstep/core/allocator.h"
#include "lockstep/core/cuda/stream.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// The allocator of all CUDA devices, made when first asked for: the CachingAllocator, or, with
/// LOCKSTEP_CUDA_MEMORY_CACHE=0, one that asks the driver for every block, so that tools which watch over memory see
/// each tensor's end. Throws Error, saying why, if there is no device.
Allocator& device_allocator();

/// `stream`, which is not the one the tensor was made on, uses it too: its memory is not handed out again before what
/// is on the stream when the tensor goes has been done.
void record_stream(const Tensor& tensor, const Stream& stream);

/// While it lives, memory that was used on `stream` is kept, free or not: a captured graph goes on using what was
/// allocated and freed during its capture.
class MemoryHold {
 public:
  explicit MemoryHold(const Stream& stream);
  ~MemoryHold();
  MemoryHold(const MemoryHold&) = delete;

 private:
  Stream stream_;
};

/// Writes `bytes` of the host's memory (a multiple of 8) to that of a device, in the order of its current stream. They
/// travel as arguments of kernels: the call has read them when it returns, and neither waits for the device nor needs
/// pinned memory. For some kilobytes.
void store(const void* source, void* target, std::size_t bytes, int device);

// What core's copy_values() and fill_values() need. At least one tensor is on a CUDA device; sizes fit.

/// Copies between any devices, converting dtype and layout. Returns when the source may be written again by the host;
/// what is on the device follows in the order of its current stream.
void copy(const Tensor& source, const Tensor& target);
void fill(const Tensor& tensor, Scalar value);

}  // namespace lockstep::cuda
