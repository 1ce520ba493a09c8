#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// target[i] = source[indices[i]], rows along dimension 0: batches of a data set that lies on the device. All three on
/// one CUDA device and contiguous; indices int64 [N], in [0, source.size(0)), which nobody checks; target of source's
/// dtype, [N, ...]. Queued on the current stream.
void gather_rows(const Tensor& source, const Tensor& indices, const Tensor& target);

}  // namespace lockstep::cuda
