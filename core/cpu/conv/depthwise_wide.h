#pragma once

// Depthwise convolutions of one plane by vectors of sixteen: rows are read once, and what a tap sees is shifted out of
// them. Kernels of side x side taps with side / 2 zeros around the image, so that `step` x `step` rows and columns of
// it make one result. For .cpp files only.

#include <cstdint>

namespace lockstep::cpu::conv_detail {

struct WidePlane {
  int side;             ///< 3, 5 or 7
  int step;             ///< 1 or 2
  std::int64_t h, w;    ///< of the image
  std::int64_t oh, ow;  ///< of the results: (h + step - 1) / step
};

/// out = the results for weights [side][side], + term, then max(0, out) if `relu`.
void wide_results(const WidePlane& plane, const float* image, const float* weights, float term, bool relu, float* out);
/// The gradient of the image, of a step of 2: sums over the taps from the last to the first.
void wide_image_gradient_of_step_2(const WidePlane& plane, const float* grad, const float* weights, float* x_grad);
/// chains[tap][column % 16] += grad * what the tap sees, row by row; for sides of 5 and 7.
void wide_weight_chains(const WidePlane& plane, const float* image, const float* grad, float* chains);

/// Any kernel of four rows or more, one below the other, that moves by one row and one column.
struct TapRows {
  std::int64_t rows, columns;  ///< of taps
  std::int64_t dilation;       ///< distance of neighbours in a row
  std::int64_t pitch;          ///< of a plane that holds all that is seen, and 64 elements behind it
  std::int64_t oh, ow;         ///< of the results
};
/// out = the results for weights [rows][columns], + term, then max(0, out) if `relu`; `from` is the plane.
void wide_results(const TapRows& taps, const float* from, const float* weights, float term, bool relu, float* out);

}  // namespace lockstep::cpu::conv_detail
