#pragma once

#include <utility>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of max_pool2d().
struct MaxPool2dOptions {
  Size2d stride = 0;       ///< 0: the kernel's size
  Size2d padding = 0;      ///< at most half the kernel; never the maximum
  Size2d dilation = 1;     ///< distance between the elements of a window
  bool ceil_mode = false;  ///< also take windows that hang over the bottom or right edge
};

/// Maximum over windows of each channel, as torch.nn.functional.max_pool2d. x is [n, c, h, w] or [c, h, w]. NaN wins;
/// of equal values the first in row-major order gets the gradient. Floating-point tensors. Throws Error for options or
/// sizes that leave no window.
Tensor max_pool2d(const Tensor& x, Size2d kernel, const MaxPool2dOptions& options = {});

/// The same, and beside it, of the same sizes, the position of each maximum in its image: int64, row * width + column.
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, Size2d kernel, const MaxPool2dOptions& options = {});

}  // namespace lockstep
