#pragma once

#include <cstdint>

#include "lockstep/core/philox.h"
#include "lockstep/core/tensor.h"

namespace lockstep::detail {

/// One decision of dropout: mask element m is 1 (keep) if the m-th Philox word of key.get() is at least `threshold`,
/// that is p * 2^32. It holds for `inner` neighbouring elements; kept ones are multiplied by `scale`.
struct DropoutPlan {
  philox::KeySource key;
  std::uint32_t threshold = 0;
  double scale = 1.0;
  std::int64_t inner = 1;
};

/// Fills mask (uint8, x.numel() / inner elements) and out; all contiguous.
using DropoutKernel = void(const Tensor& x, const Tensor& mask, const Tensor& out, const DropoutPlan& plan);
DropoutKernel dropout_reference, dropout_cpu, dropout_cuda;
/// The same with a mask that exists: the backward pass, on gradients.
DropoutKernel dropout_apply_reference, dropout_apply_cpu, dropout_apply_cuda;

}  // namespace lockstep::detail
