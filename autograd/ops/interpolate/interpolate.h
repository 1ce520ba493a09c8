#pragma once

#include <cstdint>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// Where interpolate() takes its values: the pixel below, or a mean of the four around (linear: of the two beside,
/// trilinear: of the eight around), weighted by their distance; bicubic: of sixteen, by cubic convolution with a =
/// -0.75 (Keys, "Cubic convolution interpolation for digital image processing", 1981); area: the mean of what a pixel
/// covers.
enum class InterpolateMode : std::uint8_t { nearest, bilinear, linear, bicubic, trilinear, area };
inline constexpr InterpolateMode kNearest = InterpolateMode::nearest;      ///< under libtorch's names, as the next ones
inline constexpr InterpolateMode kBilinear = InterpolateMode::bilinear;    ///< InterpolateMode::bilinear
inline constexpr InterpolateMode kLinear = InterpolateMode::linear;        ///< InterpolateMode::linear
inline constexpr InterpolateMode kBicubic = InterpolateMode::bicubic;      ///< InterpolateMode::bicubic
inline constexpr InterpolateMode kTrilinear = InterpolateMode::trilinear;  ///< InterpolateMode::trilinear
inline constexpr InterpolateMode kArea = InterpolateMode::area;            ///< InterpolateMode::area
/// Options of interpolate().
struct InterpolateOptions {
  Size2d size = 0;            ///< of the result; 0: given by scale_factor. Of rows [n, c, w] the width counts
  double scale_factor = 0.0;  ///< the result's size is floor(size * scale_factor); 0: given by size
  InterpolateMode mode = InterpolateMode::nearest;  ///< how values between pixels are found
  bool align_corners = false;           ///< unless nearest or area: the corner pixels' centres stay where they are
  bool recompute_scale_factor = false;  ///< places follow from both sizes, instead of from scale_factor
  Size3d volume_size = 0;               ///< of the result, instead of size, for volumes
};
/// Images [n, c, h, w] (nearest, bilinear, bicubic, area), rows [n, c, w] (nearest, linear, area) or volumes
/// [n, c, d, h, w] (nearest, trilinear, area) of another size, as torch.nn.functional.interpolate. Floating-point
/// tensors, and uint8 ones for nearest; halves are computed in float. Gradients are added in a fixed order. A dimension
/// whose size stays the same is copied whatever the scale_factor, except by bicubic. Throws Error unless exactly one of
/// size and scale_factor is given and no size is 0.
Tensor interpolate(const Tensor& x, const InterpolateOptions& options);

/// What grid_sample() reads beside an image: zeros, the pixel at the edge, or the image mirrored there.
enum class GridPadding : std::uint8_t { zeros, border, reflection };
/// Options of grid_sample().
struct GridSampleOptions {
  InterpolateMode mode = InterpolateMode::bilinear;  ///< or nearest
  GridPadding padding_mode = GridPadding::zeros;     ///< what lies beside the image
  bool align_corners = false;                        ///< -1 and 1 are the corner pixels' centres, not the image's edges
};
/// Images [n, c, h, w] at the places of grid [n, h', w', 2], each (x, y) from -1 to 1 across the image: [n, c, h', w'],
/// as torch.nn.functional.grid_sample. Differentiable in both (nearest: in x). Composed of gather() and arithmetic;
/// halves are computed in float. Throws Error unless both are floating point of one dtype on one device.
Tensor grid_sample(const Tensor& x, const Tensor& grid, const GridSampleOptions& options = {});
/// The grid for grid_sample() of the affine maps theta [n, 2, 3] and results of `size` {n, c, h, w}: [n, h, w, 2], as
/// torch.nn.functional.affine_grid. Differentiable in theta.
Tensor affine_grid(const Tensor& theta, const Shape& size, bool align_corners = false);

}  // namespace lockstep
