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

/// Options of conv_transpose2d().
struct ConvTranspose2dOptions {
  Size2d stride = 1;          ///< distance of the windows in the result
  Size2d padding = 0;         ///< rows and columns that are left out of the result on each side
  Size2d output_padding = 0;  ///< of the result, more rows and columns at the end; below the stride or the dilation
  std::int64_t groups = 1;    ///< as conv2d's
  Size2d dilation = 1;        ///< distance between the taps of the kernel
};
/// The transpose of conv2d(): its gradient for x as a function of the result's. x is [n, in, h, w] (or without n),
/// weight [in, out / groups, kh, kw]; the result is [n, out, oh, ow] with
/// oh = (h - 1) * stride - 2 * padding + dilation * (kh - 1) + output_padding + 1. Semantics of
/// torch.nn.functional.conv_transpose2d. Throws Error as conv2d() does.
Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose2dOptions& options = {});

/// Options of conv1d().
struct Conv1dOptions {
  std::int64_t stride = 1;    ///< step of the window
  std::int64_t padding = 0;   ///< zeros on each side; -1: as kSame
  std::int64_t dilation = 1;  ///< distance between the taps of the kernel
  std::int64_t groups = 1;    ///< as conv2d's
};
/// conv2d() of images of height 1: x [n, in, length] (or without n), weight [out, in / groups, k].
Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv1dOptions& options = {});
/// Options of conv_transpose1d().
struct ConvTranspose1dOptions {
  std::int64_t stride = 1;          ///< distance of the windows in the result
  std::int64_t padding = 0;         ///< elements that are left out of the result on each side
  std::int64_t output_padding = 0;  ///< more elements of the result at its end
  std::int64_t groups = 1;          ///< as conv2d's
  std::int64_t dilation = 1;        ///< distance between the taps of the kernel
};
/// conv_transpose2d() of images of height 1.
Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose1dOptions& options = {});

/// Options of conv3d().
struct Conv3dOptions {
  Size3d stride = 1;        ///< step of the window
  Size3d padding = 0;       ///< zeros on each side
  Size3d dilation = 1;      ///< distance between the taps of the kernel
  std::int64_t groups = 1;  ///< as conv2d's
};
/// 3-D convolution of volumes [n, in, d, h, w] (or without n), as torch.nn.functional.conv3d: a conv2d() of images
/// whose channels are the layers that the kernel [out, in / groups, kd, kh, kw] meets, or, of float32 channels that do
/// not meet each other on a CPU (out = in = groups, a stride of 1 along the depth), one for each layer of the kernel,
/// added up in their order. Throws Error as conv2d() does.
Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Conv3dOptions& options = {});
/// Options of conv_transpose3d().
struct ConvTranspose3dOptions {
  Size3d stride = 1;          ///< distance of the windows in the result
  Size3d padding = 0;         ///< layers, rows and columns that are left out of the result on each side
  Size3d output_padding = 0;  ///< of the result, more of them at the end
  std::int64_t groups = 1;    ///< as conv2d's
  Size3d dilation = 1;        ///< distance between the taps of the kernel
};
/// The transpose of conv3d(): a conv_transpose2d() with the layers of the kernel [in, out / groups, kd, kh, kw] as
/// channels of the result, which are added up where they meet.
Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
                        const ConvTranspose3dOptions& options = {});

}  // namespace lockstep
