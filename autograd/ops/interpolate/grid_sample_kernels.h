#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Of images [n, channels, h, w] that are looked at in `places` places each.
struct GridSampleSizes {
  std::int64_t n, channels, h, w, places;
};

// Bilinear samples of x, with zeros around it, at the places (column, row) [n, places] in pixels. Contiguous tensors of
// float32 or float64 on the CPU; out and grad are [n, channels, places].
void grid_sample_cpu(const GridSampleSizes& sizes, const Tensor& x, const Tensor& column, const Tensor& row,
                     const Tensor& out);
/// Writes all of the gradients that are defined. What meets at a pixel is added in the places' order, what meets at a
/// place in the channels'.
void grid_sample_backward_cpu(const GridSampleSizes& sizes, const Tensor& grad, const Tensor& x, const Tensor& column,
                              const Tensor& row, const Tensor& x_grad, const Tensor& column_grad,
                              const Tensor& row_grad);

}  // namespace lockstep
