#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep::cuda {

/// Copies source to target by tiles, if that turns matrices round: target is contiguous, source is of its dtype, or one
/// is float32 and the other a half type, and of its sizes, and while one runs along the last dimension, merged where
/// that can be, the other runs along the one before. False, with nothing done, if it does not. Queued on the current
/// stream.
bool copy_transposed(const Tensor& source, const Tensor& target);

}  // namespace lockstep::cuda
