#pragma once

#include <array>
#include <cstdint>
#include <utility>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Which dimensions of a shape an operation reduces.
struct ReduceDims {
  std::array<bool, Shape::kMaxDims> reduced{};
  Shape sizes;             ///< of the input
  Shape kept_sizes;        ///< with size 1 at reduced dimensions
  Shape result_sizes;      ///< kept_sizes, or without the reduced dimensions
  std::int64_t count = 1;  ///< input elements to each output

  ReduceDims() = default;
  /// Throws Error naming `op` for a dimension out of range or named twice.
  ReduceDims(const Tensor& x, const Shape& dims, bool keepdim, const char* op);

  /// If the reduced dimensions are neighbours, how many elements they have and how many lie behind them, of a
  /// contiguous input; else {0, 0}, as for an input without elements.
  std::pair<std::int64_t, std::int64_t> as_middle() const;

  /// A view of a tensor of result_sizes that has kept_sizes.
  Tensor with_kept_dims(const Tensor& result) const;
  /// The same, repeated along the reduced dimensions to the input's shape, without copying.
  Tensor spread(const Tensor& result) const;
};

}  // namespace lockstep
