#pragma once

// Half types on the CPU: computed in float32, each result rounded once.

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::conv2d_widened {

inline bool is_half(const Tensor& t) {
  return t.dtype() == kFloat16 || t.dtype() == kBFloat16;
}
/// The same values in float32; undefined for an undefined tensor.
inline Tensor widened(const Tensor& t) {
  return t.defined() ? cast_values(t, kFloat32) : t;
}
/// For results that are to be rounded into `t`, likewise.
inline Tensor widened_empty(const Tensor& t) {
  return t.defined() ? empty(t.sizes()) : t;
}

}  // namespace lockstep::conv2d_widened
