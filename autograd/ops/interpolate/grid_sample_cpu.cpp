#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/autograd/ops/interpolate/grid_sample_kernels.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

constexpr std::int64_t kPlaces = 256;  // that are worked on together

/// The four pixels around each of some places: upper left and right, lower left and right. Where one is beside the
/// image, `inside` is 0 and `pixel` that of the corner.
template <typename C>
struct Corners {
  std::int32_t pixel[4][kPlaces];
  std::int32_t inside[4][kPlaces];
  C from_left[kPlaces], to_right[kPlaces], from_top[kPlaces], to_bottom[kPlaces];

  Corners(const C* column, const C* row, std::int64_t count, std::int64_t h, std::int64_t w) {
    const C height = static_cast<C>(h), width = static_cast<C>(w);
    const auto line = static_cast<std::int32_t>(w);
    cpu::by_widest_vectors([this, column, row, count, height, width, line] {
      LOCKSTEP_VECTORIZE
      for (std::int64_t p = 0; p < count; ++p) {
        const C left = std::floor(column[p]), top = std::floor(row[p]);
        const C right = left + C(1), bottom = top + C(1);
        from_left[p] = column[p] - left;
        to_right[p] = right - column[p];
        from_top[p] = row[p] - top;
        to_bottom[p] = bottom - row[p];
#pragma GCC unroll 4
        for (int k = 0; k < 4; ++k) {
          const C x = k % 2 == 0 ? left : right, y = k < 2 ? top : bottom;
          const bool in = (x >= C(0)) & (x < width) & (y >= C(0)) & (y < height);
          inside[k][p] = in ? 1 : 0;
          pixel[k][p] = static_cast<std::int32_t>(in ? y : C(0)) * line + static_cast<std::int32_t>(in ? x : C(0));
        }
      }
    });
  }

  C weight(int k, std::int64_t p) const {
    return (k % 2 == 0 ? to_right[p] : from_left[p]) * (k < 2 ? to_bottom[p] : from_top[p]);
  }
};

/// Calls body(image, first place, their number) for pieces of the places of all images, in parallel.
template <typename Body>
void for_each_piece(const GridSampleSizes& s, Body&& body) {
  const std::int64_t pieces = (s.places + kPlaces - 1) / kPlaces;
  parallel_for(s.n * pieces, std::max<std::int64_t>(1, cpu::kElementBlock / (kPlaces * s.channels)),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t first = i % pieces * kPlaces;
                   body(i / pieces, first, std::min(kPlaces, s.places - first));
                 }
               });
}

}  // namespace

void grid_sample_cpu(const GridSampleSizes& s, const Tensor& x, const Tensor& column, const Tensor& row,
                     const Tensor& out) {
  dispatch_compute(x.dtype(), "grid_sample", [&]<typename C>() {
    const C *images = x.data<C>(), *columns = column.data<C>(), *rows = row.data<C>();
    C* to = out.data<C>();
    for_each_piece(s, [&](std::int64_t image, std::int64_t first, std::int64_t count) {
      const std::int64_t at = image * s.places + first;
      const Corners<C> corners(columns + at, rows + at, count, s.h, s.w);
      const Corners<C>* const around = &corners;
      for (std::int64_t c = 0; c < s.channels; ++c) {
        const C* plane = images + (image * s.channels + c) * s.h * s.w;
        C* values = to + (image * s.channels + c) * s.places + first;
        cpu::by_widest_vectors([=] {
          LOCKSTEP_VECTORIZE
          for (std::int64_t p = 0; p < count; ++p) {
            C part[4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
              const C product = plane[around->pixel[k][p]] * around->weight(k, p);
              part[k] = around->inside[k][p] != 0 ? product : C(0);  // what is not read may be infinite
            }
            values[p] = ((part[0] + part[1]) + part[2]) + part[3];
          }
        });
      }
    });
  });
}

void grid_sample_backward_cpu(const GridSampleSizes& s, const Tensor& grad, const Tensor& x, const Tensor& column,
                              const Tensor& row, const Tensor& x_grad, const Tensor& column_grad,
                              const Tensor& row_grad) {
  dispatch_compute(x.dtype(), "grid_sample backward", [&]<typename C>() {
    const C *from = grad.data<C>(), *images = x.data<C>(), *columns = column.data<C>(), *rows = row.data<C>();
    if (x_grad.defined()) {
      // A plane at a time, place after place, and the corners of each in their order.
      C* to = x_grad.data<C>();
      parallel_for(s.n * s.channels, std::max<std::int64_t>(1, cpu::kElementBlock / (s.h * s.w + s.places)),
                   [&](std::int64_t begin, std::int64_t end) {
                     for (std::int64_t i = begin; i < end; ++i) {
                       C* plane = to + i * s.h * s.w;
                       std::fill_n(plane, s.h * s.w, C(0));
                       for (std::int64_t first = 0; first < s.places; first += kPlaces) {
                         const std::int64_t count = std::min(kPlaces, s.places - first);
                         const std::int64_t at = i / s.channels * s.places + first;
                         const Corners<C> corners(columns + at, rows + at, count, s.h, s.w);
                         const C* g = from + i * s.places + first;
                         for (std::int64_t p = 0; p < count; ++p)
                           for (int k = 0; k < 4; ++k)
                             if (corners.inside[k][p] != 0) plane[corners.pixel[k][p]] += g[p] * corners.weight(k, p);
                       }
                     }
                   });
    }
    if (!column_grad.defined() && !row_grad.defined()) return;
    C* to_columns = column_grad.defined() ? column_grad.data<C>() : nullptr;
    C* to_rows = row_grad.defined() ? row_grad.data<C>() : nullptr;
    for_each_piece(s, [&](std::int64_t image, std::int64_t first, std::int64_t count) {
      const std::int64_t at = image * s.places + first;
      const Corners<C> corners(columns + at, rows + at, count, s.h, s.w);
      const Corners<C>* const around = &corners;
      C across[kPlaces] = {}, down[kPlaces] = {};
      for (std::int64_t c = 0; c < s.channels; ++c) {
        const C* plane = images + (image * s.channels + c) * s.h * s.w;
        const C* g = from + (image * s.channels + c) * s.places + first;
        cpu::by_widest_vectors([=, across = static_cast<C*>(across), down = static_cast<C*>(down)] {
          LOCKSTEP_VECTORIZE
          for (std::int64_t p = 0; p < count; ++p) {
            C value[4];
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k) {
              const C pixel = plane[around->pixel[k][p]];
              value[k] = around->inside[k][p] != 0 ? pixel : C(0);
            }
            const C upper = value[1] - value[0], lower = value[3] - value[2];
            const C left = value[2] - value[0], right = value[3] - value[1];
            across[p] += g[p] * (upper * around->to_bottom[p] + lower * around->from_top[p]);
            down[p] += g[p] * (left * around->to_right[p] + right * around->from_left[p]);
          }
        });
      }
      if (to_columns) std::copy_n(across, count, to_columns + at);
      if (to_rows) std::copy_n(down, count, to_rows + at);
    });
  });
}

}  // namespace lockstep
