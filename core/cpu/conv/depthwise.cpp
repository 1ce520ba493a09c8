#include "lockstep/core/cpu/conv/depthwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/core/cpu/conv/planes.h"
#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

constexpr std::int64_t kMost = 4;       // vectors of results at a time
constexpr int kRows = 2;                // of results at a time
constexpr std::int64_t kSlack = 4 * 8;  // elements that vectors read beyond a plane
constexpr std::int64_t kTaskMacs = 200'000;

Planes planes_of(const Conv& c) {
  return {1,
          c.h,
          c.w,
          c.padding_h,
          c.padding_w,
          c.stride_h,
          c.stride_w,
          c.oh,
          c.ow,
          c.dilation_h * (c.kh - 1),
          c.dilation_w * (c.kw - 1)};
}

// Where each tap reads for result (0, 0), in a plane.
std::vector<std::int64_t> tap_offsets(const Conv& c, const Planes& planes) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t ky = 0; ky < c.kh; ++ky)
    for (std::int64_t kx = 0; kx < c.kw; ++kx) offsets.push_back(planes.offset(ky * c.dilation_h, kx * c.dilation_w));
  return offsets;
}

// A plane in memory that may be read beyond its end.
const float* readable(const Planes& planes, const float* image, float* space) {
  if (planes.copied)
    planes.copy(image, space);
  else
    std::copy_n(image, planes.size(), space);
  return space;
}

std::int64_t planes_per_task(const Conv& c) {
  return std::max<std::int64_t>(1, kTaskMacs / (c.oh * c.ow * c.kh * c.kw));
}

struct ResultArguments {
  const float* from;
  std::int64_t pitch;  // of rows of the plane
  const std::vector<std::int64_t>& offsets;
  const float* weights;
  float term;
  bool relu;
  float* to;
  std::int64_t to_pitch;
};

// V vectors of results of each of R rows: enough chains to hide an addition's latency.
template <int R, int V>
void results(const ResultArguments& a) {
  Vec8 sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = Vec8{};
  const float* weights = a.weights;
  for (const std::int64_t offset : a.offsets) {
    const Vec8 factor = broadcast8(*weights++);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v) sum[r][v] = fma8(factor, load8(a.from + r * a.pitch + offset + 8 * v), sum[r][v]);
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      const Vec8 value = sum[r][v] + broadcast8(a.term);
      store8(a.to + r * a.to_pitch + 8 * v, a.relu ? (value < Vec8{} ? Vec8{} : value) : value);
    }
}

template <int R>
void results(std::int64_t vectors, const ResultArguments& a) {
  switch (vectors) {
    case 1:
      return results<R, 1>(a);
    case 2:
      return results<R, 2>(a);
    case 3:
      return results<R, 3>(a);
    default:
      return results<R, 4>(a);
  }
}

// The first `count` of eight lanes, and 0.
Vec8 first_lanes(Vec8 v, std::int64_t count) {
  const IntVec8 lane = {0, 1, 2, 3, 4, 5, 6, 7};
  const auto n = static_cast<std::int32_t>(count);
  return lane < IntVec8{n, n, n, n, n, n, n, n} ? v : Vec8{};
}

// to[j] += from[j] * factor for j < count, each a fused multiply-add.
void add_scaled(const float* from, float factor, float* to, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) to[j] = std::fma(from[j], factor, to[j]);
}

// Adds to sums[t][16 chains], for T taps of one row of the kernel, a row of products of gradient and image.
template <int T>
void add_row(const float* grad, const float* image, const std::int64_t* offsets, std::int64_t rows, std::int64_t count,
             std::int64_t pitch, float* sums) {
  Vec8 low[T], high[T];
  for (int t = 0; t < T; ++t) low[t] = load8(sums + 16 * t), high[t] = load8(sums + 16 * t + 8);
  for (std::int64_t y = 0; y < rows; ++y, grad += count, image += pitch) {
    std::int64_t j = 0;
    for (; j + 16 <= count; j += 16) {
      const Vec8 a = load8(grad + j), b = load8(grad + j + 8);
      for (int t = 0; t < T; ++t) {
        low[t] = fma8(a, load8(image + offsets[t] + j), low[t]);
        high[t] = fma8(b, load8(image + offsets[t] + j + 8), high[t]);
      }
    }
    if (j + 8 <= count) {
      const Vec8 a = load8(grad + j);
      for (int t = 0; t < T; ++t) low[t] = fma8(a, load8(image + offsets[t] + j), low[t]);
      j += 8;
      if (j < count) {
        const Vec8 b = first_lanes(load8(grad + j), count - j);
        for (int t = 0; t < T; ++t) high[t] = fma8(b, first_lanes(load8(image + offsets[t] + j), count - j), high[t]);
      }
    } else if (j < count) {
      const Vec8 a = first_lanes(load8(grad + j), count - j);
      for (int t = 0; t < T; ++t) low[t] = fma8(a, first_lanes(load8(image + offsets[t] + j), count - j), low[t]);
    }
  }
  for (int t = 0; t < T; ++t) store8(sums + 16 * t, low[t]), store8(sums + 16 * t + 8, high[t]);
}

}  // namespace

void depthwise_forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out) {
  const Planes planes = planes_of(c);
  const std::vector<std::int64_t> offsets = tap_offsets(c, planes);
  parallel_for(c.n * c.in, planes_per_task(c), [&](std::int64_t begin, std::int64_t end) {
    const Tensor space = zeros({planes.size() + kSlack});
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const float* const image = readable(planes, x + plane * c.h * c.w, space.data<float>());
      const float* const weights = weight + plane % c.in * c.kh * c.kw;
      const float term = bias ? bias[plane % c.in] : 0.0f;
      float* const to = out + plane * c.oh * c.ow;
      // What a vector writes behind a row is the start of the next one, which follows: columns go from the last to the
      // first, rows from the first to the last.
      for (std::int64_t first = (c.ow - 1) / (8 * kMost) * 8 * kMost; first >= 0; first -= 8 * kMost) {
        const std::int64_t count = std::min(8 * kMost, c.ow - first), vectors = (count + 7) / 8;
        const std::int64_t spilled = 8 * vectors - count, last = spilled == 0 ? 0 : spilled <= c.ow ? 1 : c.oh;
        const std::int64_t whole = c.oh - last;  // rows that may be written behind
        ResultArguments a{image + first, planes.pitch, offsets, weights, term, relu, to + first, c.ow};
        std::int64_t y = 0;
        for (; y + kRows <= whole; y += kRows, a.from += kRows * planes.pitch, a.to += kRows * c.ow)
          results<kRows>(vectors, a);
        for (; y < whole; ++y, a.from += planes.pitch, a.to += c.ow) results<1>(vectors, a);
        for (; y < c.oh; ++y, a.from += planes.pitch) {
          float row[8 * kMost];
          a.to = row;
          results<1>(vectors, a);
          std::copy_n(row, count, to + y * c.ow + first);
        }
      }
    }
  });
}

void depthwise_backward_data(const Conv& c, const float* grad, const float* weight, float* x_grad) {
  const std::int64_t taps = c.kh * c.kw;
  const std::int64_t top = c.dilation_h * (c.kh - 1) - c.padding_h, left = c.dilation_w * (c.kw - 1) - c.padding_w;
  if (c.stride_h == 1 && c.stride_w == 1 && top >= 0 && left >= 0) {
    // A convolution of the gradient with the kernel turned by half a turn.
    std::vector<float> turned(static_cast<std::size_t>(c.in * taps));
    for (std::int64_t i = 0; i < c.in * taps; ++i)
      turned[static_cast<std::size_t>(i)] = weight[i / taps * taps + taps - 1 - i % taps];
    Conv back = c;
    back.h = c.oh, back.w = c.ow, back.oh = c.h, back.ow = c.w;
    back.padding_h = top, back.padding_w = left;
    return depthwise_forward(back, grad, turned.data(), nullptr, false, x_grad);
  }
  // Each product is added where it belongs, tap by tap, in planes laid out as the forward pass reads them.
  const Planes planes = planes_of(c);
  const std::vector<std::int64_t> offsets = tap_offsets(c, planes);
  parallel_for(c.n * c.in, planes_per_task(c), [&](std::int64_t begin, std::int64_t end) {
    const Tensor space = empty({planes.plane()});
    float* const sums = space.data<float>();
    for (std::int64_t plane = begin; plane < end; ++plane) {
      std::fill_n(sums, planes.plane(), 0.0f);
      for (std::int64_t tap = taps - 1; tap >= 0; --tap)
        for (std::int64_t y = 0; y < c.oh; ++y)
          add_scaled(grad + (plane * c.oh + y) * c.ow, weight[plane % c.in * taps + tap],
                     sums + offsets[static_cast<std::size_t>(tap)] + y * planes.pitch, c.ow);
      planes.copy_back(sums, x_grad + plane * c.h * c.w);
    }
  });
}

void depthwise_backward_weight(const Conv& c, const float* grad, const float* x, float* weight_grad) {
  constexpr std::int64_t kChains = 16;
  const Planes planes = planes_of(c);
  const std::vector<std::int64_t> offsets = tap_offsets(c, planes);
  const std::int64_t taps = c.kh * c.kw, positions = c.oh * c.ow;
  parallel_for(c.in, std::max<std::int64_t>(1, planes_per_task(c) / c.n), [&](std::int64_t begin, std::int64_t end) {
    const Tensor space = zeros({planes.size() + kSlack}), d = zeros({positions + kSlack});
    const Tensor chains = empty({taps * kChains});
    for (std::int64_t channel = begin; channel < end; ++channel) {
      std::fill_n(chains.data<float>(), taps * kChains, 0.0f);
      for (std::int64_t i = 0; i < c.n; ++i) {
        const std::int64_t plane = i * c.in + channel;
        const float* const image = readable(planes, x + plane * c.h * c.w, space.data<float>());
        std::copy_n(grad + plane * positions, positions, d.data<float>());
        for (std::int64_t tap = 0; tap < taps;) {
          const std::int64_t left = taps - tap;
          const auto add = left >= 3 ? add_row<3> : add_row<1>;
          add(d.data<float>(), image, offsets.data() + tap, c.oh, c.ow, planes.pitch,
              chains.data<float>() + tap * kChains);
          tap += left >= 3 ? 3 : 1;
        }
      }
      for (std::int64_t tap = 0; tap < taps; ++tap) {
        float* const sum = chains.data<float>() + tap * kChains;
        for (std::int64_t half = kChains / 2; half > 0; half /= 2)
          for (std::int64_t j = 0; j < half; ++j) sum[j] += sum[j + half];
        weight_grad[channel * taps + tap] = sum[0];
      }
    }
  });
}

}  // namespace lockstep::cpu::conv_detail
