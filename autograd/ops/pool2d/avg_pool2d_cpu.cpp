#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops/pool2d/avg_pool2d_kernels.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

// Note [Rows of windows]
// A row of windows is computed together, tap by tap: sums[ox] += row[ox * stride + tap] for all windows that have this
// tap inside the image, which are neighbours. A sum takes its taps in the order in which a loop over one window would,
// row by row and from left to right; an element of the gradient gets its shares window by window, which along a row of
// windows is from its last tap to its first. Of a few windows each is computed by itself, in the same order.

namespace lockstep {
namespace {

// The part of a window that lies inside the image, and the window's length with its padding.
struct Window {
  std::int64_t begin, end, padded;
};

Window window(std::int64_t index, std::int64_t kernel, std::int64_t stride, std::int64_t padding, std::int64_t size) {
  const std::int64_t begin = index * stride - padding, end = std::min(begin + kernel, size + padding);
  return {std::max<std::int64_t>(begin, 0), std::min(end, size), end - begin};
}

double divisor_of(const AvgPool2dDivisor& divisor, const Window& rows, const Window& columns) {
  if (rows.begin >= rows.end || columns.begin >= columns.end) return 1;  // of no elements, whose sum is 0
  if (divisor.fixed != 0) return static_cast<double>(divisor.fixed);
  if (divisor.count_include_pad) return static_cast<double>(rows.padded * columns.padded);
  return static_cast<double>((rows.end - rows.begin) * (columns.end - columns.begin));
}

// What rows of windows have in common; one for each task.
template <typename C>
class Windows {
 public:
  Windows(const Pool2dGeometry& geometry, const AvgPool2dDivisor& divisor)
      : g_(geometry), divisor_(divisor), values_(static_cast<std::size_t>(g_.ow)), divisors_(values_.size()) {
    for (std::int64_t tap = 0; tap < g_.kernel.w; ++tap) {
      // 0 <= ox * stride + tap - padding < w
      const std::int64_t before = g_.padding.w - tap, behind = before + g_.w;
      const std::int64_t first = before <= 0 ? 0 : (before + g_.stride.w - 1) / g_.stride.w;
      const std::int64_t end = behind <= 0 ? 0 : (behind + g_.stride.w - 1) / g_.stride.w;
      taps_.push_back({std::min(first, g_.ow), std::min(end, g_.ow)});
    }
  }

  Window rows_of(std::int64_t oy) const { return window(oy, g_.kernel.h, g_.stride.h, g_.padding.h, g_.h); }

  // What the sums of a row of windows are divided by.
  const C* divisors(const Window& rows) {
    const std::int64_t inside = rows.end - rows.begin;
    if (inside == inside_ && rows.padded == padded_) return divisors_.data();
    inside_ = inside, padded_ = rows.padded;
    for (std::int64_t ox = 0; ox < g_.ow; ++ox) {
      divisors_[static_cast<std::size_t>(ox)] = static_cast<C>(divisor_of(divisor_, rows, columns_of(ox)));
    }
    return divisors_.data();
  }

  // Whether there are too few for a row of them to fill a vector.
  bool few() const { return g_.ow < 4; }
  Window columns_of(std::int64_t ox) const { return window(ox, g_.kernel.w, g_.stride.w, g_.padding.w, g_.w); }
  // The windows that have a tap inside the image: [first, second).
  std::pair<std::int64_t, std::int64_t> with(std::int64_t tap) const { return taps_[static_cast<std::size_t>(tap)]; }
  // Where tap 0 of window 0 lies from the beginning of a row.
  std::int64_t start() const { return -g_.padding.w; }
  // One for each window.
  C* values() { return values_.data(); }

 private:
  const Pool2dGeometry& g_;
  const AvgPool2dDivisor& divisor_;
  std::vector<C> values_, divisors_;
  std::vector<std::pair<std::int64_t, std::int64_t>> taps_;
  std::int64_t inside_ = -1, padded_ = -1;
};

// Calls body(the distance of windows) with distances that are usual known to the compiler.
template <typename Body>
void with_stride(std::int64_t stride, const Body& body) {
  if (stride == 1)
    body(std::integral_constant<std::int64_t, 1>());
  else if (stride == 2)
    body(std::integral_constant<std::int64_t, 2>());
  else
    body(stride);
}

template <typename T, typename C, typename Stride>
void add_tap(const T* row, Stride stride, std::int64_t begin, std::int64_t end, C* sums) {
  for (std::int64_t i = begin; i < end; ++i) sums[i] += static_cast<C>(row[i * stride]);
}

// The means of one plane.
template <typename T, typename C, typename Stride>
void average(const Pool2dGeometry& g, Windows<C>& windows, Stride stride, const T* image, T* means) {
  C* const sums = windows.values();
  const bool pairs = stride == 2 && g.kernel.w == 2 && windows.with(0) == windows.with(1) && windows.start() == 0;
  for (std::int64_t oy = 0; oy < g.oh; ++oy, means += g.ow) {
    const Window rows = windows.rows_of(oy);
    std::fill_n(sums, g.ow, C(0));
    for (std::int64_t ox = 0; windows.few() && ox < g.ow; ++ox) {
      const Window columns = windows.columns_of(ox);
      C sum = 0;
      for (std::int64_t y = rows.begin; y < rows.end; ++y)
        for (std::int64_t i = columns.begin; i < columns.end; ++i) sum += static_cast<C>(image[y * g.w + i]);
      sums[ox] = sum;
    }
    for (std::int64_t y = rows.begin; !windows.few() && y < rows.end; ++y) {
      const T* const row = image + y * g.w;
      if (pairs) {
        for (std::int64_t i = 0; i < g.ow; ++i)
          sums[i] = sums[i] + static_cast<C>(row[2 * i]) + static_cast<C>(row[2 * i + 1]);
        continue;
      }
      for (std::int64_t tap = 0; tap < g.kernel.w; ++tap) {
        const auto [begin, end] = windows.with(tap);
        add_tap(row + windows.start() + tap, stride, begin, end, sums);
      }
    }
    const C* const divisors = windows.divisors(rows);
    for (std::int64_t i = 0; i < g.ow; ++i) means[i] = static_cast<T>(sums[i] / divisors[i]);
  }
}

// The gradient of one plane. `image`: as many elements as a plane, for sums of windows that overlap.
template <typename T, typename C, typename Stride>
void spread(const Pool2dGeometry& g, Windows<C>& windows, Stride stride, const T* grad, C* image, T* x_grad) {
  std::fill_n(image, g.h * g.w, C(0));
  C* const shares = windows.values();
  const bool pairs = stride == 2 && g.kernel.w == 2 && windows.with(0) == windows.with(1) && windows.start() == 0;
  for (std::int64_t oy = 0; oy < g.oh; ++oy, grad += g.ow) {
    const Window rows = windows.rows_of(oy);
    const C* const divisors = windows.divisors(rows);
    for (std::int64_t i = 0; i < g.ow; ++i) shares[i] = static_cast<C>(grad[i]) / divisors[i];
    for (std::int64_t ox = 0; windows.few() && ox < g.ow; ++ox) {
      const Window columns = windows.columns_of(ox);
      for (std::int64_t y = rows.begin; y < rows.end; ++y)
        for (std::int64_t i = columns.begin; i < columns.end; ++i) image[y * g.w + i] += shares[ox];
    }
    for (std::int64_t y = rows.begin; !windows.few() && y < rows.end; ++y) {
      C* const row = image + y * g.w;
      if (pairs) {
        for (std::int64_t i = 0; i < g.ow; ++i) {
          row[2 * i] += shares[i];
          row[2 * i + 1] += shares[i];
        }
        continue;
      }
      for (std::int64_t tap = g.kernel.w - 1; tap >= 0; --tap) {
        const auto [begin, end] = windows.with(tap);
        C* const to = row + windows.start() + tap;
        for (std::int64_t i = begin; i < end; ++i) to[i * stride] += shares[i];
      }
    }
  }
  if constexpr (!std::is_same_v<T, C>)
    for (std::int64_t i = 0; i < g.h * g.w; ++i) x_grad[i] = static_cast<T>(image[i]);
}

}  // namespace

void avg_pool2d_forward_cpu(const Pool2dGeometry& g, const AvgPool2dDivisor& divisor, const Tensor& x,
                            const Tensor& out) {
  dispatch_floating(x.dtype(), "avg_pool2d", [&]<typename T>() {
    using C = compute_t<T>;
    const T* const images = x.data<T>();
    T* const means = out.data<T>();
    parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
      Windows<C> windows(g, divisor);
      with_stride(g.stride.w, [&](auto stride) {
        for (std::int64_t plane = begin; plane < end; ++plane)
          average(g, windows, stride, images + plane * g.h * g.w, means + plane * g.oh * g.ow);
      });
    });
  });
}

void avg_pool2d_backward_cpu(const Pool2dGeometry& g, const AvgPool2dDivisor& divisor, const Tensor& grad,
                             const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "avg_pool2d", [&]<typename T>() {
    using C = compute_t<T>;
    const T* const from = grad.data<T>();
    T* const to = x_grad.data<T>();
    parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
      Windows<C> windows(g, divisor);
      std::vector<C> sums(std::is_same_v<T, C> ? 0 : static_cast<std::size_t>(g.h * g.w));
      with_stride(g.stride.w, [&](auto stride) {
        for (std::int64_t plane = begin; plane < end; ++plane) {
          T* const image = to + plane * g.h * g.w;
          if constexpr (std::is_same_v<T, C>)
            spread(g, windows, stride, from + plane * g.oh * g.ow, image, image);
          else
            spread(g, windows, stride, from + plane * g.oh * g.ow, sums.data(), image);
        }
      });
    });
  });
}

}  // namespace lockstep
