#pragma once

// For .cpp files only.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "lockstep/core/dispatch.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// The `count` values of a contiguous parameter of any floating-point dtype, or as often `fallback` if it is undefined.
/// `op` stands in the Error for another dtype.
template <typename C>
std::vector<C> parameter_values(const Tensor& tensor, std::int64_t count, C fallback, const char* op) {
  std::vector<C> values(static_cast<std::size_t>(count), fallback);
  if (tensor.defined())
    dispatch_floating(tensor.dtype(), op, [&]<typename W>() { std::copy_n(tensor.data<W>(), count, values.begin()); });
  return values;
}

}  // namespace lockstep
