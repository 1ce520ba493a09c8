#pragma once

#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// A tensor in page-locked memory of the host, which devices read and write without the host's help. Blocks are kept
/// for reuse, since locking pages takes long. Whoever frees the tensor makes sure that no copy on a stream still uses
/// it. Throws Error, saying why, if there is no device.
Tensor empty_pinned(const Shape& sizes, DType dtype = kFloat32);

/// True for tensors made by empty_pinned() and views of them.
bool is_pinned(const Tensor& tensor);

/// Queues a copy between a pinned tensor and one on a device (or between two on one device) on the device's current
/// stream and returns at once. Both contiguous, of equal dtype and number of elements.
void copy_async(const Tensor& source, const Tensor& target);

}  // namespace lockstep::cuda
