#pragma once

#include <cstdint>

#include "lockstep/autograd/node.h"

namespace lockstep {

/// Backward of every view of a part: zeros, with the gradient where the part lay. For .cpp files only.
struct SliceBackward final : Node {
  Shape sizes;
  Shape part_sizes;
  Shape part_strides;  ///< in a contiguous tensor of shape `sizes`
  std::int64_t part_offset = 0;

  /// The part of a contiguous tensor of shape `sizes`.
  Tensor part_of(const Tensor& x) const { return x.as_strided(part_sizes, part_strides, x.offset() + part_offset); }

  const char* name() const override { return "SliceBackward"; }
  TensorList apply(TensorList grads) override;
  bool add_to(const Tensor& grad, const Tensor& sum) override;
  TensorList apply_recorded(TensorList grads) override;
};

}  // namespace lockstep
