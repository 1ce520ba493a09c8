#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Paddings by name, as in PyTorch: kValid is none; kSame, for a stride of 1, gives a result of x's height and width.
/// Where that takes an odd number of zeros, the one more is at the bottom or the right.
inline constexpr Size2d kValid = 0;
inline constexpr Size2d kSame = -1;

/// Options of conv2d().
struct Conv2dOptions {
  Size2d stride = 1;        ///< step of the window, down and to the right
  Size2d padding = 0;       ///< zeros on each side, kValid or kSame
  Size2d dilation = 1;      ///< distance between the taps of the kernel
  std::int64_t groups = 1;  ///< input channels are divided into so many groups, each with filters of its own
};

/// 2-D convolution (cross-correlation, as in torch.nn.functional.conv2d). x is [n, in, h, w], weight
/// [out, in / groups, kh, kw], bias [out] or undefined; the result is [n, out, oh, ow] with
/// oh = (h + 2 * padding - dilation * (kh - 1) - 1) / stride + 1. Floating-point tensors of one dtype on one device;
/// float16 and bfloat16 accumulate in float. An empty batch gives an empty result. Throws Error for sizes that do not
/// fit, naming them.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv2dOptions& options = {});

}  // namespace lockstep
