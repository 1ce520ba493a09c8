#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Which elements meet: kept dimensions number the outputs in row-major order, reduced ones the terms of each.
struct ReducePlan {
  Shape kept, kept_strides;
  Shape reduced, reduced_strides;
  std::int64_t outputs = 1;
  std::int64_t count = 1;

  ReducePlan(const Tensor& x, const Tensor& out) : ReducePlan(x.sizes(), x.strides(), out) {}
  /// Of a tensor of these sizes and strides.
  ReducePlan(const Shape& sizes, const Shape& strides, const Tensor& out) {
    for (int d = 0; d < sizes.dim(); ++d) {
      const std::int64_t size = sizes[d];
      if (size == 1) continue;
      const bool keep = out.sizes()[d] == size;
      append(keep ? kept : reduced, keep ? kept_strides : reduced_strides, size, strides[d]);
      (keep ? outputs : count) *= size;
    }
    if (kept.empty()) append(kept, kept_strides, 1, 0);
    if (reduced.empty()) append(reduced, reduced_strides, 1, 0);
  }

  static void append(Shape& sizes, Shape& strides, std::int64_t size, std::int64_t stride) {
    if (!sizes.empty() && strides.back() == stride * size) {
      sizes[sizes.dim() - 1] *= size;
      strides[sizes.dim() - 1] = stride;
    } else {
      sizes.push_back(size);
      strides.push_back(stride);
    }
  }

  /// Offset of element `index` of a row-major walk over all but the last dimension.
  static std::int64_t outer_offset(const Shape& sizes, const Shape& strides, std::int64_t index) {
    std::int64_t offset = 0;
    for (int d = sizes.dim() - 2; d >= 0; --d) {
      offset += index % sizes[d] * strides[d];
      index /= sizes[d];
    }
    return offset;
  }
};

}  // namespace lockstep
