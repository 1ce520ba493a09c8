#pragma once

// Max pooling of one plane by windows of any kind, tap by tap along rows of windows, float32. For .cpp files only.
//
// Note [Taps of windows]
// Columns that a stride parts lie side by side in a copy of the plane, its phases, so that one tap of neighbouring
// windows is a run of neighbours. What the padding and whole vectors need beyond the image is in that copy too: there
// -infinity is never greater than a maximum, and gradients of 0 are added, which changes nothing, since no sum that
// starts with 0 is -0.

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/core/cpu/vec8.h"

namespace lockstep::max_pool_taps {

using cpu::IntVec8;
using cpu::kLanes;
using cpu::load8;
using cpu::store8;
using cpu::Vec8;

/// Whether positions are bytes, and rows of windows fill the better part of a vector.
inline bool serves(const Pool2dGeometry& g) {
  return g.kernel.h * g.kernel.w <= 256 && g.ow >= kLanes / 2;
}
/// Whether Pool serves: for two taps a copy of the plane takes longer than the maxima.
inline bool pools(const Pool2dGeometry& g) {
  return serves(g) && g.kernel.h * g.kernel.w > 2;
}

/// A copy of a plane by phases, whose rows are those of the image.
class Phases {
 public:
  Phases(const Pool2dGeometry& g, float beyond)
      : g_(g),
        whole_((g.ow + kLanes - 1) / kLanes * kLanes),
        length_(whole_ + (g.kernel.w - 1) * g.dilation.w / g.stride.w + 1),
        values_(static_cast<std::size_t>(g.h * g.stride.w * length_), beyond) {
    for (std::int64_t kx = 0; kx < g.kernel.w; ++kx) {
      const std::int64_t column = kx * g.dilation.w;
      taps_.push_back(column % g.stride.w * length_ + column / g.stride.w);
    }
  }

  /// Windows of a row, completed to whole vectors.
  std::int64_t whole() const { return whole_; }
  /// Tap kx of the first window of a row, in row iy; that of the next window lies behind it.
  float* tap(std::int64_t iy, std::int64_t kx) {
    return values_.data() + iy * g_.stride.w * length_ + taps_[static_cast<std::size_t>(kx)];
  }

  void read(const float* image) {
    each_run([image](float* phase, std::int64_t at, std::int64_t count, auto stride) {
      for (std::int64_t i = 0; i < count; ++i) phase[i] = image[at + i * stride];
    });
  }
  void write(float* image) {
    if (skips_columns()) std::fill_n(image, g_.h * g_.w, 0.0f);
    each_run([image](const float* phase, std::int64_t at, std::int64_t count, auto stride) {
      for (std::int64_t i = 0; i < count; ++i) image[at + i * stride] = phase[i];
    });
  }
  void clear() { std::fill(values_.begin(), values_.end(), 0.0f); }

 private:
  // Columns behind the last window's end are in no phase.
  bool skips_columns() const { return g_.w + g_.padding.w > length_ * g_.stride.w; }

  // Calls visit(a run of a phase, where it begins in the image, its length, the columns between its elements).
  template <typename Visit>
  void each_run(const Visit& visit) {
    const std::int64_t stride = g_.stride.w, pad = g_.padding.w;
    for (std::int64_t iy = 0; iy < g_.h; ++iy)
      for (std::int64_t phase = 0; phase < stride; ++phase) {
        const std::int64_t first = phase >= pad ? 0 : (pad - phase + stride - 1) / stride;  // of those in the image
        const std::int64_t column = first * stride + phase - pad;
        const std::int64_t count = std::min(length_ - first, (g_.w - column + stride - 1) / stride);
        float* const run = values_.data() + (iy * stride + phase) * length_ + first;
        if (stride == 1)
          visit(run, iy * g_.w + column, count, std::integral_constant<std::int64_t, 1>());
        else if (stride == 2)
          visit(run, iy * g_.w + column, count, std::integral_constant<std::int64_t, 2>());
        else
          visit(run, iy * g_.w + column, count, stride);
      }
  }

  const Pool2dGeometry& g_;
  std::int64_t whole_, length_;
  std::vector<float> values_;
  std::vector<std::int64_t> taps_;  // where each lies behind the beginning of a row
};

/// The taps [begin, end) of the windows of row y that lie inside the image.
struct TapRows {
  std::int64_t top, begin = 0, end;
  TapRows(const Pool2dGeometry& g, std::int64_t y) : top(y * g.stride.h - g.padding.h), end(g.kernel.h) {
    while (begin < end && top + begin * g.dilation.h < 0) ++begin;
    while (end > begin && top + (end - 1) * g.dilation.h >= g.h) --end;
  }
};

/// Maxima of planes and, with kPositions, their places, as the reference decides: the first of the largest, or the last
/// NaN.
template <bool kPositions>
class Pool {
 public:
  explicit Pool(const Pool2dGeometry& g)
      : g_(g), phases_(g, kNothing<float>), first_(static_cast<std::size_t>(phases_.whole())) {
    for (std::int64_t x = 0; x < g.ow; ++x) {
      std::int64_t kx = 0;
      const std::int64_t left = x * g.stride.w - g.padding.w;
      while (kx < g.kernel.w && left + kx * g.dilation.w < 0) ++kx;
      const bool inside = kx < g.kernel.w && left + kx * g.dilation.w < g.w;
      first_[static_cast<std::size_t>(x)] = inside ? static_cast<std::int32_t>(kx) : -1;
    }
  }

  void plane(const float* image, float* maxima, std::uint8_t* positions) {
    phases_.read(image);
    for (std::int64_t y = 0; y < g_.oh; ++y) {
      const TapRows rows(g_, y);
      for (std::int64_t x = 0; x < g_.ow; x += kLanes) {
        Vec8 best = cpu::broadcast8(kNothing<float>);
        IntVec8 where = first_taps(x, rows);
        for (std::int64_t ky = rows.begin; ky < rows.end; ++ky)
          for (std::int64_t kx = 0; kx < g_.kernel.w; ++kx) {
            const Vec8 value = load8(phases_.tap(rows.top + ky * g_.dilation.h, kx) + x);
            const IntVec8 taken = (value > best) | (value != value);
            best = taken ? value : best;
            if constexpr (kPositions)
              where = taken ? IntVec8{} + static_cast<std::int32_t>(ky * g_.kernel.w + kx) : where;
          }
        const std::int64_t at = y * g_.ow + x, count = std::min<std::int64_t>(kLanes, g_.ow - x);
        if (count == kLanes) {
          store8(maxima + at, best);
          if constexpr (kPositions) cpu::narrow8(positions + at, where);
        } else {
          for (std::int64_t i = 0; i < count; ++i) {
            maxima[at + i] = best[i];
            if constexpr (kPositions) positions[at + i] = static_cast<std::uint8_t>(where[i]);
          }
        }
      }
    }
  }

 private:
  // The first tap that is inside, or 0: where the maximum of -infinities is.
  IntVec8 first_taps(std::int64_t x, const TapRows& rows) const {
    if (!kPositions || rows.begin == rows.end) return IntVec8{};
    const IntVec8 first = load8(first_.data() + x);
    return first < 0 ? IntVec8{} : first + static_cast<std::int32_t>(rows.begin * g_.kernel.w);
  }

  const Pool2dGeometry& g_;
  Phases phases_;
  std::vector<std::int32_t> first_;
};

/// Whether an output's gradient may go to so few taps that asking each is faster than going to the one.
inline bool spreads(const Pool2dGeometry& g) {
  return serves(g) && g.kernel.h * g.kernel.w <= 16;
}

/// The gradient of planes. An element gets its outputs' gradients in their order, which along a row is from the last
/// tap to the first, as the reference adds them.
class Spread {
 public:
  explicit Spread(const Pool2dGeometry& g)
      : g_(g),
        phases_(g, 0.0f),
        grads_(static_cast<std::size_t>(phases_.whole())),
        taps_(static_cast<std::size_t>(phases_.whole()), -1) {}

  void plane(const float* grad, const std::uint8_t* positions, float* image) {
    phases_.clear();
    for (std::int64_t y = 0; y < g_.oh; ++y, grad += g_.ow, positions += g_.ow) {
      std::copy_n(grad, g_.ow, grads_.begin());
      for (std::int64_t i = 0; i < g_.ow; ++i) taps_[static_cast<std::size_t>(i)] = positions[i];
      const TapRows rows(g_, y);
      for (std::int64_t ky = rows.begin; ky < rows.end; ++ky)
        for (std::int64_t kx = g_.kernel.w - 1; kx >= 0; --kx) {
          const IntVec8 tap = IntVec8{} + static_cast<std::int32_t>(ky * g_.kernel.w + kx);
          float* const to = phases_.tap(rows.top + ky * g_.dilation.h, kx);
          for (std::int64_t x = 0; x < phases_.whole(); x += kLanes) {
            const IntVec8 goes = load8(taps_.data() + x) == tap;
            const Vec8 share = reinterpret_cast<Vec8>(goes & reinterpret_cast<IntVec8>(load8(grads_.data() + x)));
            store8(to + x, load8(to + x) + share);
          }
        }
    }
    phases_.write(image);
  }

 private:
  const Pool2dGeometry& g_;
  Phases phases_;
  std::vector<float> grads_;
  std::vector<std::int32_t> taps_;
};

}  // namespace lockstep::max_pool_taps
