#pragma once

// What a program asks of its GPUs. In a build without CUDA, and on a machine without a GPU, there is no device: what
// names one throws Error, saying why.

#include <cstddef>

#include "lockstep/core/cuda/device.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/cuda/stream.h"

namespace lockstep::cuda {

/// Blocks until all work on the device is done, on whatever stream it was put. Operations return before their work is
/// done, so a program calls this before it reads a clock. Throws Error if any of the work failed.
void synchronize(int device = 0);

/// Bytes that tensors hold on the device, now and at most since the start or the last reset_peak_memory().
std::size_t memory_allocated(int device = 0);
std::size_t max_memory_allocated(int device = 0);
void reset_peak_memory(int device = 0);
/// Bytes that are kept for tensors to come: the driver counts them as this process's.
std::size_t memory_cached(int device = 0);
/// Returns what is kept for tensors to come to the driver, on all devices, so that other processes can have it.
void empty_cache();

}  // namespace lockstep::cuda
