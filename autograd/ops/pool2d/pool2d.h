#pragma once

#include <cstdint>
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
/// of equal values the first in row-major order gets the gradient. Floating-point and integer tensors.
/// Throws Error for options or sizes that leave no window.
Tensor max_pool2d(const Tensor& x, Size2d kernel, const MaxPool2dOptions& options = {});

/// The same, and beside it, of the same sizes, the position of each maximum in its image: int64, row * width + column.
std::pair<Tensor, Tensor> max_pool2d_with_indices(const Tensor& x, Size2d kernel, const MaxPool2dOptions& options = {});

/// Options of max_unpool2d().
struct MaxUnpool2dOptions {
  Size2d stride = 0;       ///< as the pool's; 0: the kernel's size
  Size2d padding = 0;      ///< as the pool's
  Size2d output_size = 0;  ///< of the result; 0: (size - 1) * stride - 2 * padding + kernel
};
/// Zeros with each element of x [n, c, h, w] or [c, h, w] at the position that `indices` (int64, of the same sizes)
/// names in its image, row * width + column, as max_pool2d_with_indices() gives them: torch.nn.functional.max_unpool2d.
/// Of elements for one position the last stays. Throws Error for sizes that do not fit.
Tensor max_unpool2d(const Tensor& x, const Tensor& indices, Size2d kernel, const MaxUnpool2dOptions& options = {});

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

/// Mean over output.h x output.w windows that tile x: row i of the result covers rows floor(i * h / oh) to
/// ceil((i + 1) * h / oh), as torch.nn.functional.adaptive_avg_pool2d. x is [n, c, h, w] or [c, h, w]. Floating-point
/// tensors; halves are summed in float. Throws Error for an empty image or a negative output size.
Tensor adaptive_avg_pool2d(const Tensor& x, Size2d output);

/// max_pool2d(), avg_pool2d() and adaptive_avg_pool2d() along one dimension of x [n, c, length] or [c, length].
/// A stride of 0 is the kernel's size.
Tensor max_pool1d(const Tensor& x, std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0,
                  std::int64_t dilation = 1, bool ceil_mode = false);
/// And the place in x of each maximum.
std::pair<Tensor, Tensor> max_pool1d_with_indices(const Tensor& x, std::int64_t kernel, std::int64_t stride = 0,
                                                  std::int64_t padding = 0, std::int64_t dilation = 1,
                                                  bool ceil_mode = false);
Tensor avg_pool1d(const Tensor& x, std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0,
                  bool ceil_mode = false, bool count_include_pad = true);
Tensor adaptive_avg_pool1d(const Tensor& x, std::int64_t output);
/// Largest element of each of the windows of adaptive_avg_pool2d(). For images that the output's size divides, one
/// max_pool2d(); else a slice and a maximum for each window.
Tensor adaptive_max_pool2d(const Tensor& x, Size2d output);
/// adaptive_max_pool2d() along one dimension of x [n, c, length] or [c, length].
Tensor adaptive_max_pool1d(const Tensor& x, std::int64_t output);

/// Options of max_pool3d().
struct MaxPool3dOptions {
  Size3d stride = 0;       ///< 0: the kernel's size
  Size3d padding = 0;      ///< at most half the kernel; never the maximum
  Size3d dilation = 1;     ///< distance between the elements of a window
  bool ceil_mode = false;  ///< also take windows that hang over an edge
};
/// Maximum over windows of volumes [n, c, d, h, w] (or without n): of each layer's, then of these. Of equal values the
/// first gets the gradient, layer by layer. torch.nn.functional.max_pool3d.
Tensor max_pool3d(const Tensor& x, Size3d kernel, const MaxPool3dOptions& options = {});
/// Options of avg_pool3d().
struct AvgPool3dOptions {
  Size3d stride = 0;              ///< 0: the kernel's size
  Size3d padding = 0;             ///< zeros on each side
  bool ceil_mode = false;         ///< also take windows that hang over an edge
  bool count_include_pad = true;  ///< divide by the window's size with its padding, or by the elements inside x
};
/// Mean over windows of volumes: of each layer's, then of these. torch.nn.functional.avg_pool3d.
Tensor avg_pool3d(const Tensor& x, Size3d kernel, const AvgPool3dOptions& options = {});
/// Mean over windows that tile a volume, as adaptive_avg_pool2d().
Tensor adaptive_avg_pool3d(const Tensor& x, Size3d output);

}  // namespace lockstep
