#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of avg_pool2d().
struct AvgPool2dOptions {
  Size2d stride = 0;                  ///< 0: the kernel's size
  Size2d padding = 0;                 ///< zeros on each side; at most half the kernel
  bool ceil_mode = false;             ///< also take windows that hang over the bottom or right edge
  bool count_include_pad = true;      ///< divide by the window's size with its padding, or by the elements inside x
  std::int64_t divisor_override = 0;  ///< if not 0, divide by this
};

/// Mean over windows of each channel, as torch.nn.functional.avg_pool2d. x is [n, c, h, w] or [c, h, w].
/// Floating-point tensors; halves are summed in float. Throws Error for options or sizes that leave no window.
Tensor avg_pool2d(const Tensor& x, Size2d kernel, const AvgPool2dOptions& options = {});

}  // namespace lockstep
