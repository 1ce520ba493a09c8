#pragma once

#include <cstdint>

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// One decision of dropout: mask element m is 1 (keep) if Philox word number word_of(m) of key.get() is at least
/// `threshold`, that is p * 2^32. It holds for `inner` neighbouring elements; kept ones are multiplied by `scale`.
struct DropoutPlan {
  philox::KeySource key;
  std::uint32_t threshold = 0;
  double scale = 1.0;
  std::int64_t inner = 1;
  /// Of a part of a tensor: `row` neighbouring elements here are those from `first` on of `all` there. row 0: the mask
  /// is whole, and m the word's number.
  std::int64_t row = 0, first = 0, all = 0;

  LOCKSTEP_HOST_DEVICE std::int64_t word_of(std::int64_t m) const {
    return row == 0 ? m : m / row * all + first + m % row;
  }
};

/// Fills mask (uint8, x.numel() / inner elements) and out; all contiguous.
using DropoutKernel = void(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan);
DropoutKernel dropout_reference, dropout_cpu, dropout_cuda;
/// The same with a mask that exists: the backward pass, on gradients.
DropoutKernel dropout_apply_reference, dropout_apply_cpu, dropout_apply_cuda;

}  // namespace lockstep::detail
