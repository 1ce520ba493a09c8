#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/size2d.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Options of conv2d().
struct Conv2dOptions {
  Size2d stride = 1;        ///< step of the window, down and to the right
  Size2d padding = 0;       ///< zeros on each side
  Size2d dilation = 1;      ///< distance between the taps of the kernel
  std::int64_t groups = 1;  ///< input channels are divided into so many groups, each with filters of its own
};

/// 2-D convolution (cross-correlation, as in torch.nn.functional.conv2d). x is [n, in, h, w], weight
/// [out, in / groups, kh, kw], bias [out] or undefined; the result is [n, out, oh, ow] with
/// oh = (h + 2 * padding - dilation * (kh - 1) - 1) / stride + 1. Floating-point tensors of one dtype on one device;
/// float16 and bfloat16 accumulate in float. An empty batch gives an empty result. Throws Error for sizes that do not
/// fit, naming them.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv2dOptions& options = {});

/// relu(conv2d(x, weight, bias, options)) as one operation: one pass less over the result, forward and backward.
Tensor conv2d_relu(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv2dOptions& options = {});

}  // namespace lockstep
