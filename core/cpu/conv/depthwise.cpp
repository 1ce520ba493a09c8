#include "lockstep/core/cpu/conv/depthwise.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lockstep/core/cpu/conv/depthwise_eight.h"
#include "lockstep/core/cpu/conv/depthwise_parts.h"
#include "lockstep/core/cpu/conv/depthwise_wide.h"
#include "lockstep/core/cpu/conv/planes.h"
#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

constexpr std::int64_t kMost = 4;               // vectors of results at a time
constexpr int kRows = 2;                        // of results at a time
constexpr std::int64_t kSlack = 2 * kMost * 8;  // elements that vectors read beyond a plane

// `parted`: by the strides; else rows and columns are as in the image, and what is not needed is read past.
Planes planes_of(const Conv& c, bool parted = true) {
  const std::int64_t reach_h = c.dilation_h * (c.kh - 1), reach_w = c.dilation_w * (c.kw - 1);
  if (!parted)
    return {
        1,       c.h,    c.w, c.padding_h, c.padding_w, 1, 1, c.stride_h * (c.oh - 1) + 1, c.stride_w * (c.ow - 1) + 1,
        reach_h, reach_w};
  return {1, c.h, c.w, c.padding_h, c.padding_w, c.stride_h, c.stride_w, c.oh, c.ow, reach_h, reach_w};
}

// Where each tap reads for result (0, 0), in a plane.
std::vector<std::int64_t> tap_offsets(const Conv& c, const Planes& planes) {
  std::vector<std::int64_t> offsets;
  for (std::int64_t ky = 0; ky < c.kh; ++ky)
    for (std::int64_t kx = 0; kx < c.kw; ++kx) offsets.push_back(planes.offset(ky * c.dilation_h, kx * c.dilation_w));
  return offsets;
}

[[gnu::always_inline]] inline void copy_run(const float* from, std::int64_t count, float* to) {
  std::int64_t j = 0;
  for (; j + 8 <= count; j += 8) store8(to + j, load8(from + j));
  if (j < count && count >= 8) return store8(to + count - 8, load8(from + count - 8));
  for (; j < count; ++j) to[j] = from[j];
}

// A plane in memory that may be read beyond its end; `space` was zeros before its first use.
const float* readable(const Planes& p, const float* image, float* space) {
  if (!p.copied) {
    std::copy_n(image, p.size(), space);
  } else if (p.step_h > 1 || p.step_w > 1) {
    p.copy(image, space);
  } else {
    const std::int64_t first = std::max<std::int64_t>(0, p.left), end = std::min(p.pitch, p.w + p.left);
    const std::int64_t first_row = std::max<std::int64_t>(0, p.top), end_row = std::min(p.rows, p.h + p.top);
    for (std::int64_t q = first_row; q < end_row; ++q)
      copy_run(image + (q - p.top) * p.w + first - p.left, end - first, space + q * p.pitch + first);
  }
  return space;
}

struct ResultArguments {
  const float* from;
  std::int64_t pitch;  // from what a row of results reads to what the next one does
  const std::vector<std::int64_t>& offsets;
  const float* weights;
  float term;
  bool relu;
  float* to;
  std::int64_t to_pitch;
};

// p[0], p[kStep], p[2 * kStep] ...
template <int kStep>
Vec8 load_every(const float* p) {
  static_assert(kStep == 1 || kStep == 2);
  if constexpr (kStep == 1)
    return load8(p);
  else
    return __builtin_shufflevector(load8(p), load8(p + 8), 0, 2, 4, 6, 8, 10, 12, 14);
}

template <int R, int V>
[[gnu::always_inline]] inline void finish(const Vec8 (&sum)[R][V], const ResultArguments& a) {
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) {
      const Vec8 value = sum[r][v] + broadcast8(a.term);
      store8(a.to + r * a.to_pitch + 8 * v, a.relu ? (value < Vec8{} ? Vec8{} : value) : value);
    }
}

// V vectors of results of each of R rows: enough chains to hide an addition's latency.
template <int kStep, int R, int V>
void results(const ResultArguments& a) {
  Vec8 sum[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = Vec8{};
  const float* weights = a.weights;
  for (const std::int64_t offset : a.offsets) {
    const Vec8 factor = broadcast8(*weights++);
    for (int r = 0; r < R; ++r)
      for (int v = 0; v < V; ++v)
        sum[r][v] = fma8(factor, load_every<kStep>(a.from + r * a.pitch + offset + 8 * kStep * v), sum[r][v]);
  }
  finish(sum, a);
}

template <int kStep, int R>
void results(std::int64_t vectors, const ResultArguments& a) {
  switch (vectors) {
    case 1:
      return results<kStep, R, 1>(a);
    case 2:
      return results<kStep, R, 2>(a);
    case 3:
      return results<kStep, R, 3>(a);
    default:
      return results<kStep, R, 4>(a);
  }
}

constexpr int kSharing = 4;  // rows of results that share what they see of a row

// Adds to rows First ... Last of the sums what they see of one row of the plane: `from` for the first tap, `weights`
// for row 0, above which lie those of the rows below it.
template <int V, int First, int Last>
[[gnu::always_inline]] inline void add_seen(const float* from, const float* weights, std::int64_t taps,
                                            std::int64_t dilation, Vec8 (&sum)[kSharing][V]) {
  for (std::int64_t k = 0; k < taps; ++k, from += dilation, ++weights) {
    Vec8 seen[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) seen[v] = load8(from + 8 * v);
#pragma GCC unroll 4
    for (int r = First; r <= Last; ++r) {
      const Vec8 factor = broadcast8(weights[-r * taps]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = fma8(factor, seen[v], sum[r][v]);
    }
  }
}

// As results() of four rows, whose taps lie row below row: what is loaded serves all rows that see it. A sum has its
// terms in the same order.
template <int V>
void shared_results(const Conv& c, const ResultArguments& a) {
  Vec8 sum[kSharing][V];
  for (int r = 0; r < kSharing; ++r)
    for (int v = 0; v < V; ++v) sum[r][v] = Vec8{};
  const std::int64_t taps = c.kw, dilation = c.dilation_w;
  const float* from = a.from + a.offsets.front();
  const float* weights = a.weights;
  const auto next = [&] { from += a.pitch, weights += taps; };
  add_seen<V, 0, 0>(from, weights, taps, dilation, sum), next();
  add_seen<V, 0, 1>(from, weights, taps, dilation, sum), next();
  add_seen<V, 0, 2>(from, weights, taps, dilation, sum), next();
  for (std::int64_t i = 3; i < c.kh; ++i, next()) add_seen<V, 0, 3>(from, weights, taps, dilation, sum);
  add_seen<V, 1, 3>(from, weights, taps, dilation, sum), next();
  add_seen<V, 2, 3>(from, weights, taps, dilation, sum), next();
  add_seen<V, 3, 3>(from, weights, taps, dilation, sum);
  finish(sum, a);
}

void shared_results(const Conv& c, std::int64_t vectors, const ResultArguments& a) {
  if (vectors == 1) return shared_results<1>(c, a);
  if (vectors == 2) return shared_results<2>(c, a);
  shared_results<3>(c, a);
}

bool shares_rows(const Conv& c) {
  return c.kh >= kSharing && c.stride_h == 1 && c.stride_w == 1 && c.dilation_h == 1;
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
template <int kStep, int T>
void add_row(const float* grad, const float* image, const std::int64_t* offsets, std::int64_t rows, std::int64_t count,
             std::int64_t pitch, float* sums) {
  Vec8 low[T], high[T];
  for (int t = 0; t < T; ++t) low[t] = load8(sums + 16 * t), high[t] = load8(sums + 16 * t + 8);
  for (std::int64_t y = 0; y < rows; ++y, grad += count, image += pitch) {
    std::int64_t j = 0;
    for (; j + 16 <= count; j += 16) {
      const Vec8 a = load8(grad + j), b = load8(grad + j + 8);
      for (int t = 0; t < T; ++t) {
        low[t] = fma8(a, load_every<kStep>(image + offsets[t] + kStep * j), low[t]);
        high[t] = fma8(b, load_every<kStep>(image + offsets[t] + kStep * (j + 8)), high[t]);
      }
    }
    if (j + 8 <= count) {
      const Vec8 a = load8(grad + j);
      for (int t = 0; t < T; ++t) low[t] = fma8(a, load_every<kStep>(image + offsets[t] + kStep * j), low[t]);
      j += 8;
      if (j < count) {
        const Vec8 b = first_lanes(load8(grad + j), count - j);
        for (int t = 0; t < T; ++t)
          high[t] = fma8(b, first_lanes(load_every<kStep>(image + offsets[t] + kStep * j), count - j), high[t]);
      }
    } else if (j < count) {
      const Vec8 a = first_lanes(load8(grad + j), count - j);
      for (int t = 0; t < T; ++t)
        low[t] = fma8(a, first_lanes(load_every<kStep>(image + offsets[t] + kStep * j), count - j), low[t]);
    }
  }
  for (int t = 0; t < T; ++t) store8(sums + 16 * t, low[t]), store8(sums + 16 * t + 8, high[t]);
}

template <int kStep>
void forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out,
             InstructionSet set) {
  const Planes planes = planes_of(c, kStep == 1);
  const std::vector<std::int64_t> offsets = tap_offsets(c, planes);
  const std::int64_t pitch = kStep == 1 ? planes.pitch : c.stride_h * planes.pitch;
  const bool shared = shares_rows(c);
  const std::int64_t all = (c.ow + 7) / 8, passes = (all + 2) / 3;
  const std::int64_t most = shared ? (all + passes - 1) / passes : kMost;
  parallel_for(c.n * c.in, planes_per_task(c), [&](std::int64_t begin, std::int64_t end) {
    const Tensor space = zeros({planes.size() + kSlack});
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const float* const image = readable(planes, x + plane * c.h * c.w, space.data<float>());
      const float* const weights = weight + plane % c.in * c.kh * c.kw;
      const float term = bias ? bias[plane % c.in] : 0.0f;
      float* const to = out + plane * c.oh * c.ow;
      if (kStep == 1 && shared && set == InstructionSet::avx512) {
        wide_results(TapRows{c.kh, c.kw, c.dilation_w, planes.pitch, c.oh, c.ow}, image + offsets.front(), weights,
                     term, relu, to);
        continue;
      }
      // What a vector writes behind a row is the start of the next one, which follows: columns go from the last to the
      // first, rows from the first to the last.
      for (std::int64_t first = (c.ow - 1) / (8 * most) * 8 * most; first >= 0; first -= 8 * most) {
        const std::int64_t count = std::min(8 * most, c.ow - first), vectors = (count + 7) / 8;
        const std::int64_t spilled = 8 * vectors - count, last = spilled == 0 ? 0 : spilled <= c.ow ? 1 : c.oh;
        const std::int64_t whole = c.oh - last;  // rows that may be written behind
        ResultArguments a{image + kStep * first, pitch, offsets, weights, term, relu, to + first, c.ow};
        std::int64_t y = 0;
        if (kStep == 1 && shared)
          for (; y + kSharing <= whole; y += kSharing, a.from += kSharing * pitch, a.to += kSharing * c.ow)
            shared_results(c, vectors, a);
        for (; y + kRows <= whole; y += kRows, a.from += kRows * pitch, a.to += kRows * c.ow)
          results<kStep, kRows>(vectors, a);
        for (; y < whole; ++y, a.from += pitch, a.to += c.ow) results<kStep, 1>(vectors, a);
        for (; y < c.oh; ++y, a.from += pitch) {
          float row[8 * kMost];
          a.to = row;
          results<kStep, 1>(vectors, a);
          std::copy_n(row, count, to + y * c.ow + first);
        }
      }
    }
  });
}

// out[2 * i] = x[i], out[2 * i + 1] = y[i], for `count` elements of out; eight of x and y may be read behind.
void zip(const float* x, const float* y, std::int64_t count, float* out) {
  const auto sixteen = [&](std::int64_t i, float* to) {
    const Vec8 a = load8(x + i), b = load8(y + i);
    store8(to, __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11));
    store8(to + 8, __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15));
  };
  std::int64_t j = 0;
  for (; j + 16 <= count; j += 16) sixteen(j / 2, out + j);
  if (j == count) return;
  if (count >= 16 && count % 2 == 0) return sixteen((count - 16) / 2, out + count - 16);
  float last[16];
  sixteen(j / 2, last);
  std::copy_n(last, count - j, out + j);
}

// The image's gradient for stride 2: pixels of one remainder of row and one of column see the same taps, so they are a
// convolution of the gradient with every second row and column of the kernel turned by half a turn.
void backward_data_of_stride_2(const Conv& c, const float* grad, const float* weight, float* x_grad) {
  const std::int64_t most_h = (c.kh + 1) / 2, most_w = (c.kw + 1) / 2;  // taps that a pixel sees
  const std::int64_t rows = (c.padding_h + c.h - 1) / 2 + 1, columns = (c.padding_w + c.w - 1) / 2 + 1;
  const Planes planes{1, c.oh, c.ow, most_h - 1, most_w - 1, 1, 1, rows, columns, most_h - 1, most_w - 1};
  const std::int64_t pitch = (columns + 7) / 8 * 8, part = rows * pitch;
  std::vector<std::int64_t> offsets[4];
  std::vector<std::int64_t> taps[4];  // in the order of the sum: from the last to the first
  for (std::int64_t p = 0; p < 4; ++p)
    for (std::int64_t ky = c.kh - 1; ky >= 0; --ky)
      for (std::int64_t kx = c.kw - 1; kx >= 0; --kx)
        if (ky % 2 == p / 2 && kx % 2 == p % 2) {
          offsets[p].push_back(planes.offset(most_h - 1 - ky / 2, most_w - 1 - kx / 2));
          taps[p].push_back(ky * c.kw + kx);
        }
  parallel_for(c.n * c.in, planes_per_task(c), [&](std::int64_t begin, std::int64_t end) {
    const Tensor space = zeros({planes.size() + kSlack}), of_parts = zeros({4 * part + kSlack});
    float* const read = space.data<float>();
    float* const parts = of_parts.data<float>();
    std::vector<float> factors(static_cast<std::size_t>(c.kh * c.kw));
    for (std::int64_t plane = begin; plane < end; ++plane) {
      const float* const from = readable(planes, grad + plane * c.oh * c.ow, read);
      for (std::int64_t p = 0; p < 4; ++p) {
        for (std::size_t t = 0; t < taps[p].size(); ++t) factors[t] = weight[plane % c.in * c.kh * c.kw + taps[p][t]];
        for (std::int64_t first = 0; first < pitch; first += 8 * kMost) {
          ResultArguments a{
              from + first, planes.pitch, offsets[p], factors.data(), 0.0f, false, parts + p * part + first, pitch};
          const std::int64_t vectors = std::min(kMost, (pitch - first) / 8);
          std::int64_t y = 0;
          for (; y + kRows <= rows; y += kRows, a.from += kRows * planes.pitch, a.to += kRows * pitch)
            results<1, kRows>(vectors, a);
          for (; y < rows; ++y, a.from += planes.pitch, a.to += pitch) results<1, 1>(vectors, a);
        }
      }
      for (std::int64_t y = 0; y < c.h; ++y) {
        const std::int64_t at = y + c.padding_h;
        const float* const even = parts + at % 2 * 2 * part + at / 2 * pitch + c.padding_w / 2;
        float* const to = x_grad + (plane * c.h + y) * c.w;
        c.padding_w % 2 == 0 ? zip(even, even + part, c.w, to) : zip(even + part, even + 1, c.w, to);
      }
    }
  });
}

}  // namespace

void depthwise_forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out,
                       InstructionSet set) {
  if (wide_serves(c, set)) return wide_forward(c, x, weight, bias, relu, out);
  if (eight_serves(c)) return eight_forward(c, x, weight, bias, relu, out);
  return (c.stride_w == 2 ? forward<2> : forward<1>)(c, x, weight, bias, relu, out, set);
}

void depthwise_backward_data(const Conv& c, const float* grad, const float* weight, float* x_grad, InstructionSet set) {
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
    return depthwise_forward(back, grad, turned.data(), nullptr, false, x_grad, set);
  }
  if (c.stride_h == 2 && c.stride_w == 2 && c.dilation_h == 1 && c.dilation_w == 1)
    return (wide_serves(c, set) ? wide_backward_data_of_stride_2 : backward_data_of_stride_2)(c, grad, weight, x_grad);
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

void depthwise_backward_weight(const Conv& c, const float* grad, const float* x, float* weight_grad,
                               InstructionSet set) {
  // By measurement vectors of eight are faster for nine taps, whose chains fit in registers.
  if (wide_serves(c, set) && c.kh > 3) return wide_backward_weight(c, grad, x, weight_grad);
  if (eight_serves(c)) return eight_backward_weight(c, grad, x, weight_grad);
  const Planes planes = planes_of(c, c.stride_w != 2);
  const std::int64_t pitch = c.stride_w == 2 ? c.stride_h * planes.pitch : planes.pitch;
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
          const std::int64_t* const at = offsets.data() + tap;
          const auto add = c.stride_w == 2 ? left >= 3 ? add_row<2, 3> : add_row<2, 1>
                           : left >= 3 ? add_row<1, 3>
                                           : add_row<1, 1>;
          add(d.data<float>(), image, at, c.oh, c.ow, pitch, chains.data<float>() + tap * kChains);
          tap += left >= 3 ? 3 : 1;
        }
      }
      add_chains(taps, chains.data<float>(), weight_grad + channel * taps);
    }
  });
}

}  // namespace lockstep::cpu::conv_detail
