#pragma once

// Loops over strided tensors on the CPU. For .cpp files only.

#include <array>
#include <cstdint>

#include "lockstep/core/shape.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {

/// Elements of cheap work to a block; see Note [Thread-independent results].
inline constexpr std::int64_t kElementBlock = 16384;

/// N tensors broadcast to one shape, with neighbouring dimensions merged where all strides allow it. Stride 0 repeats.
template <int N>
struct StridedLoop {
  Shape sizes;                   ///< merged; at least one dimension
  std::array<Shape, N> strides;  ///< in elements
  std::int64_t numel = 0;

  /// True if every operand is dense over one merged dimension.
  bool dense() const {
    if (sizes.dim() != 1) return false;
    for (const Shape& s : strides)
      if (s[0] != 1) return false;
    return true;
  }
};

/// Plans a loop of shape `sizes`; each tensor's sizes must broadcast to it.
template <int N>
StridedLoop<N> plan_loop(const Shape& sizes, const std::array<const Tensor*, N>& tensors) {
  StridedLoop<N> loop;
  loop.numel = sizes.numel();
  std::array<Shape, N> full;
  for (int n = 0; n < N; ++n) {
    full[n] = Shape::filled(sizes.dim(), 0);
    const Tensor& t = *tensors[n];
    for (int i = 1; i <= t.dim(); ++i)
      full[n][sizes.dim() - i] = t.sizes()[t.dim() - i] == 1 ? 0 : t.strides()[t.dim() - i];
    loop.strides[n] = {};
  }
  for (int d = 0; d < sizes.dim(); ++d) {
    if (sizes[d] == 1) continue;
    const int last = loop.sizes.dim() - 1;
    bool merge = last >= 0;
    for (int n = 0; merge && n < N; ++n) merge = loop.strides[n][last] == full[n][d] * sizes[d];
    if (merge) {
      loop.sizes[last] *= sizes[d];
      for (int n = 0; n < N; ++n) loop.strides[n][last] = full[n][d];
    } else {
      loop.sizes.push_back(sizes[d]);
      for (int n = 0; n < N; ++n) loop.strides[n].push_back(full[n][d]);
    }
  }
  if (loop.sizes.empty()) {
    loop.sizes.push_back(loop.numel);  // 0 or 1 elements
    for (int n = 0; n < N; ++n) loop.strides[n].push_back(1);
  }
  return loop;
}

/// Calls plane(offsets, row_steps, strides, rows, length) for rows of `length` elements, `strides` apart, of which one
/// begins `row_steps` behind the other; all but rows and length are arrays of N, in elements. A plane is a part of a
/// row, or some rows of the two innermost dimensions. Planes never cross a block of kElementBlock elements, and blocks
/// run in parallel.
template <int N, typename Plane>
void for_each_plane(const StridedLoop<N>& loop, Plane&& plane) {
  std::array<std::int64_t, N> inner, steps{};
  const int last = loop.sizes.dim() - 1;
  for (int n = 0; n < N; ++n) {
    inner[n] = loop.strides[n][last];
    if (last > 0) steps[n] = loop.strides[n][last - 1];
  }
  const std::int64_t width = loop.sizes[last];
  parallel_for(loop.numel, kElementBlock, [&](std::int64_t begin, std::int64_t end) {
    // Divisions find the block's first row; from there on the indices count up like an odometer.
    std::array<std::int64_t, Shape::kMaxDims> index{};
    std::array<std::int64_t, N> start{};  // of the present row
    std::int64_t rest = begin / width;
    for (int d = last - 1; d >= 0; --d) {
      index[static_cast<std::size_t>(d)] = rest % loop.sizes[d];
      rest /= loop.sizes[d];
      for (int n = 0; n < N; ++n) start[n] += index[static_cast<std::size_t>(d)] * loop.strides[n][d];
    }
    std::int64_t column = begin % width;
    while (true) {
      std::int64_t rows = 1, length = width - column < end - begin ? width - column : end - begin;
      if (length == width && last > 0) {
        const std::int64_t whole = (end - begin) / width;
        const std::int64_t left = loop.sizes[last - 1] - index[static_cast<std::size_t>(last - 1)];
        rows = whole < left ? whole : left;
      }
      std::array<std::int64_t, N> offset = start;
      for (int n = 0; n < N; ++n) offset[n] += column * inner[n];
      plane(offset, steps, inner, rows, length);
      begin += rows * length;
      if (begin >= end) return;
      column = 0;
      std::int64_t passed = rows;  // along dimension d
      for (int d = last - 1; d >= 0; --d) {
        for (int n = 0; n < N; ++n) start[n] += passed * loop.strides[n][d];
        if ((index[static_cast<std::size_t>(d)] += passed) < loop.sizes[d]) break;
        index[static_cast<std::size_t>(d)] = 0;
        for (int n = 0; n < N; ++n) start[n] -= loop.strides[n][d] * loop.sizes[d];
        passed = 1;
      }
    }
  });
}

/// Calls row(offsets, strides, length) for the rows of for_each_plane().
template <int N, typename Row>
void for_each_row(const StridedLoop<N>& loop, Row&& row) {
  for_each_plane(loop, [&](std::array<std::int64_t, N> offset, const std::array<std::int64_t, N>& steps,
                           const std::array<std::int64_t, N>& inner, std::int64_t rows, std::int64_t length) {
    for (; rows > 0; --rows) {
      row(offset, inner, length);
      for (int n = 0; n < N; ++n) offset[n] += steps[n];
    }
  });
}

}  // namespace lockstep::cpu
