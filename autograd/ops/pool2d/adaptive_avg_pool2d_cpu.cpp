#include <cstring>
#include <type_traits>
#include <vector>

#include "lockstep/autograd/ops/pool2d/adaptive_avg_pool2d_kernels.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/cpu/transpose8.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

struct Window {
  std::int64_t begin, end;
};

Window window(std::int64_t index, std::int64_t out, std::int64_t size) {
  return {index * size / out, ((index + 1) * size + out - 1) / out};
}

// Calls visit(output index within the plane, rows, columns) for each window.
template <typename Visit>
void for_each_window(const Pool2dGeometry& g, Visit&& visit) {
  for (std::int64_t oy = 0; oy < g.oh; ++oy)
    for (std::int64_t ox = 0; ox < g.ow; ++ox) visit(oy * g.ow + ox, window(oy, g.oh, g.h), window(ox, g.ow, g.w));
}

std::int64_t area(const Window& rows, const Window& columns) {
  return (rows.end - rows.begin) * (columns.end - columns.begin);
}

/// Whether rows of windows are long enough for lanes. Those as wide as the image lie behind one another, as one; for
/// few elements of it planes together are faster.
bool has_long_rows(const Pool2dGeometry& g) {
  return g.ow == 1 ? g.h / g.oh * g.w >= 4 * cpu::kSumLanes : g.w / g.ow >= cpu::kSumLanes;
}

/// Averages of a plane whose windows have long rows: each row is added up in the order of cpu::lane_sum(), and the sums
/// of rows in theirs.
template <typename T, typename C>
void average_long_rows(const Pool2dGeometry& g, const C* plane, T* out) {
  for_each_window(g, [&](std::int64_t index, const Window& rows, const Window& columns) {
    const auto sum_of = [&](std::int64_t y, std::int64_t length) {
      const C* const row = plane + y * g.w + columns.begin;
      return cpu::lane_sum<C>(length, [row](std::int64_t i) { return row[i]; });
    };
    C sum = 0;
    if (g.ow == 1)
      sum = sum_of(rows.begin, area(rows, columns));
    else
      for (std::int64_t y = rows.begin; y < rows.end; ++y) sum += sum_of(y, columns.end - columns.begin);
    out[index] = static_cast<T>(sum / static_cast<C>(area(rows, columns)));
  });
}

/// Averages of kPlanes neighbouring planes. A window is added up in order, each addition waiting for the one before;
/// several planes together keep the processor busy meanwhile.
template <int kPlanes, typename T, typename C>
void average_planes(const Pool2dGeometry& g, const C* planes, T* out) {
  for_each_window(g, [&](std::int64_t index, const Window& rows, const Window& columns) {
    C sums[kPlanes] = {};
    for (std::int64_t y = rows.begin; y < rows.end; ++y)
      for (std::int64_t i = columns.begin; i < columns.end; ++i)
        for (int p = 0; p < kPlanes; ++p) sums[p] += planes[p * g.h * g.w + y * g.w + i];
    for (int p = 0; p < kPlanes; ++p)
      out[p * g.oh * g.ow + index] = static_cast<T>(sums[p] / static_cast<C>(area(rows, columns)));
  });
}

/// Averages of eight neighbouring planes of n elements, each of which is one window: a vector has a lane for each
/// plane, and four elements of each are turned at a time. A plane's elements meet as in average_long_rows() if they are
/// many enough, else as in average_planes().
template <typename T>
void average_eight_whole(std::int64_t n, const float* planes, T* out) {
  using cpu::Vec8;
  typedef float Half __attribute__((vector_size(16)));
  constexpr std::int64_t kSide = cpu::kLanes, kHalf = kSide / 2;
  const bool in_lanes = n >= 4 * cpu::kSumLanes;
  Vec8 m[kSide], lanes{}, rest{};
  std::int64_t at = in_lanes ? n / cpu::kSumLanes * cpu::kSumLanes : 0;
  if (in_lanes) {
    for (std::int64_t p = 0; p < kSide; ++p) {
      Vec8 low{}, high{};
      for (std::int64_t i = 0; i < at; i += cpu::kSumLanes) {
        low += cpu::load8(planes + p * n + i);
        high += cpu::load8(planes + p * n + i + kSide);
      }
      m[p] = low + high;
    }
    cpu::transpose8(m);
    lanes = ((m[0] + m[4]) + (m[2] + m[6])) + ((m[1] + m[5]) + (m[3] + m[7]));
  }
  for (; at + kHalf <= n; at += kHalf) {
    const auto rows = [from = planes + at, n](std::int64_t p) {  // of planes p and p + 4
      Half low, high;
      std::memcpy(&low, from + p * n, sizeof low);
      std::memcpy(&high, from + (p + kHalf) * n, sizeof high);
      return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    };
    const Vec8 a = rows(0), b = rows(1), c = rows(2), d = rows(3);
    const Vec8 low = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13),
               next_low = __builtin_shufflevector(c, d, 0, 8, 1, 9, 4, 12, 5, 13),
               high = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15),
               next_high = __builtin_shufflevector(c, d, 2, 10, 3, 11, 6, 14, 7, 15);
    rest += __builtin_shufflevector(low, next_low, 0, 1, 8, 9, 4, 5, 12, 13);
    rest += __builtin_shufflevector(low, next_low, 2, 3, 10, 11, 6, 7, 14, 15);
    rest += __builtin_shufflevector(high, next_high, 0, 1, 8, 9, 4, 5, 12, 13);
    rest += __builtin_shufflevector(high, next_high, 2, 3, 10, 11, 6, 7, 14, 15);
  }
  for (; at < n; ++at)
    rest += Vec8{planes[at],         planes[n + at],     planes[2 * n + at], planes[3 * n + at],
                 planes[4 * n + at], planes[5 * n + at], planes[6 * n + at], planes[7 * n + at]};
  const Vec8 averages = (in_lanes ? rest + lanes : rest) / static_cast<float>(n);
  for (std::int64_t p = 0; p < kSide; ++p) out[p] = static_cast<T>(averages[p]);
}

}  // namespace

void adaptive_avg_pool2d_forward_cpu(const Pool2dGeometry& g, const Tensor& x, const Tensor& out) {
  dispatch_floating(x.dtype(), "adaptive_avg_pool2d", [&]<typename T>() {
    using C = compute_t<T>;
    constexpr std::int64_t kTogether = 8;
    const cpu::RowSource<C> source{x.data<T>(), x.dtype()};
    const bool long_rows = has_long_rows(g);
    const std::int64_t size = g.h * g.w;
    const bool whole = std::is_same_v<C, float> && g.oh == 1 && g.ow == 1;
    const std::int64_t together = (long_rows && !whole) || g.planes_per_block() < kTogether ? 1 : kTogether;
    T* averages = out.data<T>();
    parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t plane, std::int64_t end) {
      std::vector<C> space(source.readable(1) ? 0 : static_cast<std::size_t>(together * size));
      while (plane < end) {
        const std::int64_t count = plane + together <= end ? together : 1;
        const C* const planes = source.row(plane * size, 1, count * size, space.data());
        T* const to = averages + plane * g.oh * g.ow;
        if constexpr (std::is_same_v<C, float>)
          if (whole && count == kTogether) {
            average_eight_whole(size, planes, to);
            plane += count;
            continue;
          }
        if (long_rows && count == 1)
          average_long_rows(g, planes, to);
        else if (count == kTogether)
          average_planes<kTogether>(g, planes, to);
        else
          average_planes<1>(g, planes, to);
        plane += count;
      }
    });
  });
}

void adaptive_avg_pool2d_backward_cpu(const Pool2dGeometry& g, const Tensor& grad, const Tensor& x_grad) {
  dispatch_floating(grad.dtype(), "adaptive_avg_pool2d", [&]<typename T>() {
    using C = compute_t<T>;
    parallel_for(g.planes, g.planes_per_block(), [&](std::int64_t begin, std::int64_t end) {
      std::vector<C> image(static_cast<std::size_t>(g.h * g.w));
      for (std::int64_t plane = begin; plane < end; ++plane) {
        std::fill(image.begin(), image.end(), C(0));
        for_each_window(g, [&](std::int64_t index, const Window& rows, const Window& columns) {
          const C share =
              static_cast<C>(grad.data<T>()[plane * g.oh * g.ow + index]) / static_cast<C>(area(rows, columns));
          for (std::int64_t y = rows.begin; y < rows.end; ++y)
            for (std::int64_t i = columns.begin; i < columns.end; ++i)
              image[static_cast<std::size_t>(y * g.w + i)] += share;
        });
        T* to = x_grad.data<T>() + plane * g.h * g.w;
        for (std::size_t i = 0; i < image.size(); ++i) to[i] = static_cast<T>(image[i]);
      }
    });
  });
}

}  // namespace lockstep
