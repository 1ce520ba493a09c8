// Plain kernels, a thread for each element of a result, that take the CPU's steps one after the other.

#include "lockstep/autograd/ops/conv2d/conv2d_portable.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/factories.h"

namespace lockstep::conv2d_portable {
namespace {

__global__ void forward_kernel(Conv2dGeometry g, const float* x, const float* weight, const float* bias, float* out,
                               bool relu) {
  const std::int64_t count = g.n * g.out * g.oh * g.ow;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const std::int64_t column = index % g.ow, row = index / g.ow % g.oh, o = index / (g.ow * g.oh) % g.out;
    const float* const image = x + index / (g.ow * g.oh * g.out) * g.in * g.h * g.w;
    float sum = bias ? bias[o] : 0.0f;
    const float* w = weight + o * g.in * g.kh * g.kw;
    for (std::int64_t c = 0; c < g.in; ++c)
      for (std::int64_t ky = 0; ky < g.kh; ++ky)
        for (std::int64_t kx = 0; kx < g.kw; ++kx, ++w) {
          const std::int64_t at_y = row + ky - g.padding.h, at_x = column + kx - g.padding.w;
          const bool inside = at_y >= 0 && at_y < g.h && at_x >= 0 && at_x < g.w;
          sum = std::fma(*w, inside ? image[(c * g.h + at_y) * g.w + at_x] : 0.0f, sum);
        }
    out[index] = relu && sum < 0.0f ? 0.0f : sum;
  }
}

/// How the CPU cuts the sums of a weight's gradient: conv2d_pool_sparse.cpp.
struct Cuts {
  std::int64_t per_group, groups;  // images that are summed apart
  std::int64_t band_rows;          // pooled rows whose entries make a list
  std::int64_t vectors;            // of eight lanes, of a row of a patch: kw * in elements, the last one maybe in part

  explicit Cuts(const Conv2dGeometry& g) {
    const conv2d_pool::SumOrder order(g);
    per_group = order.images_per_group;
    groups = (g.n + per_group - 1) / per_group;
    band_rows = order.band_rows;
    vectors = order.vectors;
  }
};

/// partial[group][element] of the weight's gradient, and behind them partial[group][weights + o] of the bias's.
__global__ void weight_kernel(Conv2dGeometry g, Cuts cuts, const float* grad, const std::uint8_t* positions,
                              const float* x, float* partial) {
  const std::int64_t ph = g.oh / 2, pw = g.ow / 2, weights = g.out * g.in * g.kh * g.kw, all = weights + g.out;
  for (std::int64_t index = cuda::global_thread(); index < cuts.groups * all; index += cuda::all_threads()) {
    const std::int64_t group = index / all, element = index % all;
    const bool is_bias = element >= weights;
    const std::int64_t kx = element % g.kw, ky = element / g.kw % g.kh, c = element / (g.kw * g.kh) % g.in;
    const std::int64_t o = is_bias ? element - weights : element / (g.kw * g.kh * g.in);
    // Vectors and rows that are added together, and in how many sums by turns.
    const std::int64_t vector = (kx * g.in + c) / conv2d_pool::kSumLanes, first = vector - vector % conv2d_pool::kTile;
    const std::int64_t left = cuts.vectors - first, width = left < conv2d_pool::kTile ? left : conv2d_pool::kTile;
    const std::int64_t fit = conv2d_pool::kTile / width;
    const std::int64_t at_once = fit < conv2d_pool::kMaxRows ? fit : conv2d_pool::kMaxRows;
    const std::int64_t rows_left = g.kh - ky / at_once * at_once, rows = rows_left < at_once ? rows_left : at_once;
    const bool by_turns = rows * width <= conv2d_pool::kMostByTurns;
    const std::int64_t images_end = (group + 1) * cuts.per_group < g.n ? (group + 1) * cuts.per_group : g.n;
    float total = 0.0f;
    for (std::int64_t i = group * cuts.per_group; i < images_end; ++i) {
      const float* const values = grad + (i * g.out + o) * ph * pw;
      const std::uint8_t* const where = positions + (i * g.out + o) * ph * pw;
      const float* const image = x + (i * g.in + (is_bias ? 0 : c)) * g.h * g.w;
      for (std::int64_t top = 0; top < ph; top += cuts.band_rows) {
        const std::int64_t begin = top * pw, end = (top + cuts.band_rows < ph ? top + cuts.band_rows : ph) * pw;
        if (is_bias) {
          float s[conv2d_pool::kSumLanes] = {}, rest = 0.0f;
          const std::int64_t whole = begin + (end - begin) / conv2d_pool::kSumLanes * conv2d_pool::kSumLanes;
          for (std::int64_t at = begin; at < whole; at += conv2d_pool::kSumLanes)
            for (int lane = 0; lane < conv2d_pool::kSumLanes; ++lane) s[lane] += values[at + lane];
          for (std::int64_t at = whole; at < end; ++at)
            if (values[at] != 0.0f) rest += values[at];
          total += (((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]))) + rest;
          continue;
        }
        float other = 0.0f;
        bool even = true;
        for (std::int64_t at = begin; at < end; ++at) {
          const float value = values[at];
          if (value == 0.0f) continue;
          const std::int64_t at_y = 2 * (at / pw) + (where[at] >> 1 & 1) + ky - g.padding.h;
          const std::int64_t at_x = 2 * (at % pw) + (where[at] & 1) + kx - g.padding.w;
          const bool inside = at_y >= 0 && at_y < g.h && at_x >= 0 && at_x < g.w;
          float& sum = by_turns && !even ? other : total;
          sum = std::fma(value, inside ? image[at_y * g.w + at_x] : 0.0f, sum);
          even = !even;
        }
        if (by_turns) total += other;
      }
    }
    partial[index] = total;
  }
}

/// The groups' sums, one after the other.
__global__ void add_groups_kernel(const float* partial, std::int64_t groups, std::int64_t weights, std::int64_t all,
                                  float* weight_grad, float* bias_grad) {
  for (std::int64_t i = cuda::global_thread(); i < all; i += cuda::all_threads()) {
    float sum = partial[i];
    for (std::int64_t group = 1; group < groups; ++group) sum += partial[group * all + i];
    if (i < weights)
      weight_grad[i] = sum;
    else if (bias_grad)
      bias_grad[i - weights] = sum;
  }
}

/// The sum over output channels of what one place of a convolution's result sends to one of x.
__device__ float add_place(const Conv2dGeometry& g, const float* grad, const std::uint8_t* positions,
                           const float* weight, std::int64_t c, std::int64_t y, std::int64_t x, std::int64_t ky,
                           std::int64_t kx, float sum) {
  const std::int64_t ph = g.oh / 2, pw = g.ow / 2, window = y / 2 * pw + x / 2;
  const int position = static_cast<int>(y % 2 * 2 + x % 2);
  for (std::int64_t o = 0; o < g.out; ++o) {
    const std::int64_t at = o * ph * pw + window;
    if ((positions[at] & 3) != position || grad[at] == 0.0f) continue;
    sum = std::fma(grad[at], weight[((o * g.in + c) * g.kh + ky) * g.kw + kx], sum);
  }
  return sum;
}

__global__ void data_kernel(Conv2dGeometry g, const float* grad, const std::uint8_t* positions, const float* weight,
                            float* x_grad) {
  const std::int64_t ph = g.oh / 2, pw = g.ow / 2, count = g.n * g.in * g.h * g.w;
  const bool whole_vectors = g.in % conv2d_pool::kSumLanes == 0;
  for (std::int64_t index = cuda::global_thread(); index < count; index += cuda::all_threads()) {
    const std::int64_t x = index % g.w + g.padding.w, y = index / g.w % g.h + g.padding.h;
    const std::int64_t c = index / (g.w * g.h) % g.in, image = index / (g.w * g.h * g.in);
    const float* const values = grad + image * g.out * ph * pw;
    const std::uint8_t* const where = positions + image * g.out * ph * pw;
    const std::int64_t x_begin = x - g.kw + 1 > 0 ? x - g.kw + 1 : 0, x_end = x + 1 < 2 * pw ? x + 1 : 2 * pw;
    const std::int64_t first = y - g.kh + 1 > 0 ? y - g.kh + 1 : 0, last = y < 2 * ph - 1 ? y : 2 * ph - 1;
    float sum = 0.0f;
    for (std::int64_t row = first / 2; row <= last / 2 && first <= last; ++row) {
      const auto add = [&](std::int64_t from_y, std::int64_t from_x) {
        if (from_y < first || from_y > last) return;
        sum = add_place(g, values, where, weight, c, from_y, from_x, y - from_y, x - from_x, sum);
      };
      if (whole_vectors) {  // a row of weights at a time, so the lower place, whose row is the one before, comes first
        for (std::int64_t at = x_begin; at < x_end; ++at) add(2 * row + 1, at);
        for (std::int64_t at = x_begin; at < x_end; ++at) add(2 * row, at);
      } else {
        for (std::int64_t at = x_begin; at < x_end; ++at) {
          add(2 * row, at);
          add(2 * row + 1, at);
        }
      }
    }
    x_grad[index] = sum;
  }
}

}  // namespace

void forward(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& out,
             bool relu) {
  require(conv2d_forward_is_direct(g), "forward", g, x.dtype());
  const cuda::Launch launch(x);
  launch(forward_kernel, cuda::blocks_for(out.numel()), cuda::kThreads, g, x.data<float>(), weight.data<float>(),
         bias.defined() ? bias.data<float>() : nullptr, out.data<float>(), relu);
}

void pool_backward(const Conv2dGeometry& g, const Tensor& grad, const Tensor& positions, const Tensor& x,
                   const Tensor& weight, const Tensor& x_grad, const Tensor& weight_grad, const Tensor& bias_grad) {
  require(conv2d_pool_supports(g), "backward under max_pool2d", g, grad.dtype());
  const cuda::Launch launch(grad);
  const float* const values = grad.data<float>();
  const std::uint8_t* const where = positions.data<std::uint8_t>();
  if (x_grad.defined())
    launch(data_kernel, cuda::blocks_for(x_grad.numel()), cuda::kThreads, g, values, where, weight.data<float>(),
           x_grad.data<float>());
  if (!weight_grad.defined()) return;
  const Cuts cuts(g);
  const std::int64_t weights = weight_grad.numel(), all = weights + g.out;
  const Tensor partial = empty({cuts.groups, all}, {.device = grad.device()});
  launch(weight_kernel, cuda::blocks_for(cuts.groups * all), cuda::kThreads, g, cuts, values, where, x.data<float>(),
         partial.data<float>());
  launch(add_groups_kernel, cuda::blocks_for(all), cuda::kThreads, static_cast<const float*>(partial.data<float>()),
         cuts.groups, weights, all, weight_grad.data<float>(), bias_grad.defined() ? bias_grad.data<float>() : nullptr);
}

}  // namespace lockstep::conv2d_portable
