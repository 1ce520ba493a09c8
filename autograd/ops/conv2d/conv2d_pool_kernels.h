#pragma once

// A convolution under a pool of 2 x 2 windows: the kernels of both together.

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"

namespace lockstep {

/// True for convolutions that the CPU's kernels below take; CUDA's take any with oh and ow of at least 2.
bool conv2d_pool_supports(const Conv2dGeometry& geometry);

// Contiguous tensors, on the CPU of float32. `out`, `grad` and `positions` are [n, out, oh / 2, ow / 2]; positions as
// those of max_pool2d_kernels.h.

/// out = the pooled convolution, which itself never reaches memory, with a relu at `relu`. The bits are those of the
/// operations one by one. `bias` and `positions` may be undefined.
using Conv2dPoolForward = void(const Conv2dGeometry& geometry, const Tensor& x, const Tensor& weight,
                               const Tensor& bias, ReluPlace relu, const Tensor& out, const Tensor& positions);
Conv2dPoolForward conv2d_pool_forward_cpu, conv2d_pool_forward_cuda;

/// The gradients of a convolution from one that is zero but for an element in each window: `grad` at `positions`.
/// On the CPU x, weight and their gradients may be of a half type; `grad` is float32 then too.
/// `x_grad`, or `weight_grad` and `bias_grad`, or the last alone may be undefined: not wanted.
using Conv2dPoolBackward = void(const Conv2dGeometry& geometry, const Tensor& grad, const Tensor& positions,
                                const Tensor& x, const Tensor& weight, const Tensor& x_grad, const Tensor& weight_grad,
                                const Tensor& bias_grad);
Conv2dPoolBackward conv2d_pool_backward_cpu, conv2d_pool_backward_cuda;

namespace conv2d_pool {

inline constexpr int kTile = 12;        ///< vectors of sums that registers hold beside a factor
inline constexpr int kMaxRows = 5;      ///< of a patch, added at once
inline constexpr int kMostByTurns = 5;  ///< vectors that are added at once, up to which two sums take entries by turns
inline constexpr int kSumLanes = 8;     ///< elements of a vector

/// How conv2d_pool_backward_cpu() cuts the sums of a weight's gradient, which decides their bits.
struct SumOrder {
  explicit SumOrder(const Conv2dGeometry& g);
  std::int64_t images_per_group;  ///< summed apart, and then in order
  std::int64_t vectors;           ///< of a row of a patch, kw * in elements, the last one maybe in part
  std::int64_t band_rows;         ///< pooled rows whose patches stay in the first-level cache
};

}  // namespace conv2d_pool

/// Note [One bit pattern for pooled gradients]
/// The sums of conv2d_pool_backward_cpu() are in another order than those of the kernels for gradients of any kind. So
/// that bits do not depend on whether a pool's gradient came as it is or was written out before (because a hook read
/// it, say), every gradient with no more than one element that is not zero in each window is taken for a pool's: true
/// for those, with what grad, float32, and positions are then. The first windows of any other tell the difference.
bool conv2d_pool_compress(const Conv2dGeometry& geometry, const Tensor& dense, Tensor& grad, Tensor& positions);

}  // namespace lockstep
