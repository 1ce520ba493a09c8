#pragma once

// What layer_norm() and group_norm() ask of weight and bias. For .cpp files only.

#include "lockstep/core/check.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Throws Error, naming `op` and `what`, unless `tensor` is undefined or of that shape and the input's dtype and
/// device, or float32 for an input of a half type.
inline void check_norm_parameter(const Tensor& tensor, const Tensor& input, const Shape& shape, const char* what,
                                 const char* op) {
  if (!tensor.defined()) return;
  LOCKSTEP_CHECK(tensor.sizes() == shape, "[{}] expected {} of shape {}, found {}", op, what, to_string(shape),
                 to_string(tensor.sizes()));
  const bool half = input.dtype() == kFloat16 || input.dtype() == kBFloat16;
  LOCKSTEP_CHECK(tensor.dtype() == input.dtype() || (half && tensor.dtype() == kFloat32),
                 "[{}] expected {} of dtype {} like the input{}, found {}", op, what, name(input.dtype()),
                 half ? ", or float32" : "", name(tensor.dtype()));
  LOCKSTEP_CHECK(tensor.device() == input.device(), "[{}] {} is on {}, the input on {}; move one with to()", op, what,
                 to_string(tensor.device()), to_string(input.device()));
}

}  // namespace lockstep
