// Windows of 2 x 2 with stride 2 by vectors, the others tap by tap: of float32 by vectors too (max_pool2d_taps.h), of
// other types by loops that the compiler turns into vector code. Half types are pooled as float32, which holds their
// values.

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/autograd/ops/pool2d/max_pool2d_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_rows.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_taps.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

bool is_two_by_two(const Pool2dGeometry& g, const Tensor& t) {
  return t.dtype() == kFloat32 && is_max_pool_2x2(g);
}

using namespace max_pool_rows;

bool is_half(const Tensor& t) {
  return t.dtype() == kFloat16 || t.dtype() == kBFloat16;
}

/// One tap of the windows of a row: where it is the new maximum, as the reference decides.
template <int kStride, typename T>
void take_tap(const T* from, std::int64_t stride, std::int64_t count, std::int32_t tap, T* best, std::int32_t* where) {
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i) {
    const T value = from[i * (kStride > 0 ? kStride : stride)];
    const bool taken = (where[i] < 0) | (value > best[i]) | (value != value);
    best[i] = taken ? value : best[i];
    where[i] = taken ? tap : where[i];
  }
}

/// One row of results; `where` has room for a row.
template <typename T>
void pool_row(const Pool2dGeometry& g, const T* image, std::int64_t y, T* best, std::int32_t* where) {
  std::fill_n(best, g.ow, kNothing<T>);
  std::fill_n(where, g.ow, -1);
  // Taps that are inside for this row, and for one window of it at least.
  const std::int64_t top = y * g.stride.h - g.padding.h, last = (g.ow - 1) * g.stride.w - g.padding.w;
  const auto first_inside = [](std::int64_t start, std::int64_t step) {
    return start >= 0 ? 0 : (step - 1 - start) / step;
  };
  const std::int64_t first_x = first_inside(last, g.dilation.w);
  const std::int64_t end_x = std::min(g.kernel.w, (g.w - 1 + g.padding.w) / g.dilation.w + 1);
  for (std::int64_t ky = first_inside(top, g.dilation.h); ky < g.kernel.h; ++ky) {
    const std::int64_t iy = top + ky * g.dilation.h;
    if (iy >= g.h) break;
    for (std::int64_t kx = first_x; kx < end_x; ++kx) {
      // Windows whose tap is inside: 0 <= x stride + shift < w.
      const std::int64_t shift = kx * g.dilation.w - g.padding.w, stride = g.stride.w;
      const std::int64_t first = shift >= 0 ? 0 : (-shift + stride - 1) / stride;
      const std::int64_t end = shift >= g.w ? 0 : std::min(g.ow, (g.w - 1 - shift) / stride + 1);
      if (first >= end) continue;
      const T* from = image + iy * g.w + first * stride + shift;
      const auto tap = static_cast<std::int32_t>(ky * g.kernel.w + kx);
      const auto take = stride == 1 ? take_tap<1, T> : stride == 2 ? take_tap<2, T> : take_tap<0, T>;
      take(from, stride, end - first, tap, best + first, where + first);
    }
  }
}

/// The windows that are a whole plane each: global pooling.
bool is_whole_plane(const Pool2dGeometry& g) {
  return g.oh * g.ow == 1 && g.kernel.h == g.h && g.kernel.w == g.w && g.padding.h == 0 && g.padding.w == 0 &&
         g.dilation.h == 1 && g.dilation.w == 1;
}

/// Where take_tap() for one value after the other ends: at the last NaN, else at the first of the largest.
template <typename T>
std::int64_t place_of_maximum(const T* values, std::int64_t count) {
  constexpr std::int64_t kParts = 16;
  T best[kParts], odd[kParts];  // odd: a NaN, if there was one
  std::fill_n(best, kParts, kNothing<T>);
  std::fill_n(odd, kParts, T(0));
  const auto take = [&](T value, std::int64_t j) __attribute__((always_inline)) {
    best[j] = value > best[j] ? value : best[j];
    odd[j] = value == value ? odd[j] : value;
  };
  std::int64_t i = 0;
  for (; i + kParts <= count; i += kParts)
    for (std::int64_t j = 0; j < kParts; ++j) take(values[i + j], j);
  for (std::int64_t j = 0; i + j < count; ++j) take(values[i + j], j);
  T most = best[0];
  bool any_odd = false;
  for (std::int64_t j = 0; j < kParts; ++j) {
    most = best[j] > most ? best[j] : most;
    any_odd = any_odd || odd[j] != odd[j];
  }
  if (any_odd)
    for (i = count - 1;; --i)
      if (values[i] != values[i]) return i;
  return std::find(values, values + count, most) - values;
}

template <typename T, typename P>
void pool_whole_planes(const Pool2dGeometry& g, const Tensor& x, const Tensor& out, P* positions) {
  const T* in = x.data<T>();
  T* maxima = out.data<T>();
  parallel_for(g.planes, g.planes_per_block(), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const T* const values = in + plane * g.h * g.w;
      const std::int64_t at = place_of_maximum(values, g.h * g.w);
      maxima[plane] = values[at];
      if (positions) positions[plane] = static_cast<P>(at);
    }
  });
}

template <typename T, typename P>
void pool_any(const Pool2dGeometry& g, const Tensor& x, const Tensor& out, P* positions) {
  if (is_whole_plane(g)) return pool_whole_planes<T>(g, x, out, positions);
  const T* in = x.data<T>();
  T* maxima = out.data<T>();
  parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> where(static_cast<std::size_t>(g.ow));
    for (std::int64_t plane = begin; plane < end; ++plane)
      for (std::int64_t y = 0; y < g.oh; ++y) {
        const std::int64_t row = (plane * g.oh + y) * g.ow;
        pool_row(g, in + plane * g.h * g.w, y, maxima + row, where.data());
        if (positions)
          for (std::int64_t i = 0; i < g.ow; ++i)
            positions[row + i] = static_cast<P>(std::max(where[static_cast<std::size_t>(i)], 0));
      }
  });
}

template <bool kPositions>
void pool_by_taps(const Pool2dGeometry& g, const float* in, float* maxima, std::uint8_t* positions) {
  parallel_for(g.planes, g.planes_per_block(), [=](std::int64_t begin, std::int64_t end) {
    max_pool_taps::Pool<kPositions> pool(g);
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const std::int64_t at = plane * g.oh * g.ow;
      pool.plane(in + plane * g.h * g.w, maxima + at, kPositions ? positions + at : nullptr);
    }
  });
}

void spread_by_taps(const Pool2dGeometry& g, const float* grad, const std::uint8_t* positions, float* x_grad) {
  parallel_for(g.planes, g.planes_per_block(), [=](std::int64_t begin, std::int64_t end) {
    max_pool_taps::Spread spread(g);
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const std::int64_t at = plane * g.oh * g.ow;
      spread.plane(grad + at, positions + at, x_grad + plane * g.h * g.w);
    }
  });
}

template <typename T>
void pool_any(const Pool2dGeometry& g, const Tensor& x, const Tensor& out, const Tensor& positions) {
  if (!positions.defined() || positions.dtype() == kUInt8)
    pool_any<T>(g, x, out, positions.defined() ? positions.data<std::uint8_t>() : nullptr);
  else
    pool_any<T>(g, x, out, positions.data<std::int32_t>());
}

}  // namespace

void max_pool2d_forward_cpu(const Pool2dGeometry& g, const Tensor& x, const Tensor& out, const Tensor& positions) {
  if (is_half(x)) {
    const Tensor wide = empty(out.sizes());
    max_pool2d_forward_cpu(g, cast_values(x, kFloat32), wide, positions);
    return copy_values(wide, out);
  }
  if (!x.is_floating_point())
    return dispatch_integer(x.dtype(), "max_pool2d", [&]<typename T>() { pool_any<T>(g, x, out, positions); });
  if (x.dtype() == kFloat64) return pool_any<double>(g, x, out, positions);
  if (!is_two_by_two(g, x)) {
    if (!max_pool_taps::pools(g)) return pool_any<float>(g, x, out, positions);
    const float* const images = x.data<float>();
    if (!positions.defined()) return pool_by_taps<false>(g, images, out.data<float>(), nullptr);
    return pool_by_taps<true>(g, images, out.data<float>(), positions.data<std::uint8_t>());
  }
  const float* in = x.data<float>();
  float* maxima = out.data<float>();
  std::uint8_t* where = positions.defined() ? positions.data<std::uint8_t>() : nullptr;
  const PoolPlane pool = pool_plane_function(where != nullptr, ReluPlace::none);
  parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const std::int64_t at = plane * g.oh * g.ow;
      pool(in + plane * g.h * g.w, g.w, g.oh, g.ow, maxima + at, where ? where + at : nullptr);
    }
  });
}

void max_pool2d_backward_cpu(const Pool2dGeometry& g, const Tensor& grad, const Tensor& positions,
                             const Tensor& x_grad) {
  if (is_half(grad)) {
    const Tensor wide = empty(x_grad.sizes());
    max_pool2d_backward_cpu(g, cast_values(grad, kFloat32), positions, wide);
    return copy_values(wide, x_grad);
  }
  if (!is_two_by_two(g, grad)) {
    if (grad.dtype() != kFloat32 || !max_pool_taps::spreads(g))
      return max_pool2d_backward_reference(g, grad, positions, x_grad);
    return spread_by_taps(g, grad.data<float>(), positions.data<std::uint8_t>(), x_grad.data<float>());
  }
  const float* d = grad.data<float>();
  const std::uint8_t* where = positions.data<std::uint8_t>();
  const SpreadPlane spread = spread_plane_function();
  parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const std::int64_t at = plane * g.oh * g.ow;
      spread(d + at, where + at, g.h, g.w, x_grad.data<float>() + plane * g.h * g.w);
    }
  });
}

void max_pool2d_relu_grad_cpu(const Tensor& grad, const Tensor& positions, const Tensor& out) {
  const float* d = grad.data<float>();
  const std::uint8_t* where = positions.data<std::uint8_t>();
  float* to = out.data<float>();
  parallel_for(grad.numel(), cpu::kElementBlock, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float value = d[i];  // read in any case, so that nothing is decided by a jump
      to[i] = where[i] & kMaxPoolNotPositive ? 0.0f : value;
    }
  });
}

}  // namespace lockstep
