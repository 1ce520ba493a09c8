#include "lockstep/core/cpu/conv/conv.h"

#include <algorithm>

#include "lockstep/core/cpu/conv/correlation.h"
#include "lockstep/core/cpu/conv/depthwise.h"
#include "lockstep/core/cpu/conv/winograd.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

using conv_detail::Correlation;
using conv_detail::depthwise_backward_data;
using conv_detail::depthwise_forward;
using conv_detail::is_depthwise;
using conv_detail::Planes;
using conv_detail::Tap;

// The rows or columns of x that a stride leaves the same remainder: which taps reach them, and where from.
struct Phase {
  std::int64_t first, count;          // x[first + q * stride] for q < count
  std::vector<std::int64_t> taps;     // rising
  std::vector<std::int64_t> offsets;  // tap i is multiplied with grad[q + offsets[i]]
};

Phase phase_of(std::int64_t first, std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
               std::int64_t dilation) {
  Phase phase{first, size > first ? (size - first - 1) / stride + 1 : 0, {}, {}};
  for (std::int64_t k = 0; k < kernel; ++k) {
    const std::int64_t distance = first + padding - k * dilation;
    if (distance % stride != 0) continue;
    phase.taps.push_back(k);
    phase.offsets.push_back(distance / stride);
  }
  return phase;
}

void backward_data_of_phase(const Conv& c, const Phase& y, const Phase& x, std::int64_t group, const float* grad,
                            const float* weight, float* x_grad, InstructionSet set) {
  const std::int64_t in = c.group_in(), out = c.group_out(), kernel = c.kh * c.kw;
  // Taps go on reading towards the first rows: offsets fall as taps rise.
  const std::int64_t top = std::max<std::int64_t>(0, -y.offsets.back()),
                     left = std::max<std::int64_t>(0, -x.offsets.back());
  Correlation correlation{.planes = Planes(out, c.oh, c.ow, top, left, 1, 1, y.count, x.count, y.offsets.front() + top,
                                           x.offsets.front() + left),
                          .taps = {},
                          .rows = in,
                          .n = c.n,
                          .oh = y.count,
                          .ow = x.count,
                          .images = grad + group * out * c.oh * c.ow,
                          .image_stride = c.out * c.oh * c.ow,
                          .out = x_grad + group * in * c.h * c.w + y.first * c.w + x.first,
                          .out_image = c.in * c.h * c.w,
                          .out_plane = c.h * c.w,
                          .out_row = c.stride_h * c.w,
                          .out_column = c.stride_w};
  for (const std::int64_t dy : y.offsets)
    for (const std::int64_t dx : x.offsets) correlation.taps.push_back({dy + top, dx + left});
  const auto taps = static_cast<std::int64_t>(correlation.taps.size());
  const Tensor turned = empty({in * out * taps});  // [in][out][tap]
  float* const to = turned.data<float>();
  constexpr std::int64_t kAtOnce = 16;  // input channels, whose weights lie together
  parallel_for(in, kAtOnce, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t o = 0; o < out; ++o)
      for (std::int64_t i = begin; i < end; ++i) {
        const float* const from = weight + ((group * out + o) * in + i) * kernel;
        float* p = to + (i * out + o) * taps;
        for (const std::int64_t ky : y.taps)
          for (const std::int64_t kx : x.taps) *p++ = from[ky * c.kw + kx];
      }
  });
  correlation.run(set, to);
}

}  // namespace

void conv_forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out,
                  const ConvSink* sink, InstructionSet set) {
  if (is_depthwise(c) && !sink) return depthwise_forward(c, x, weight, bias, relu, out);
  if (conv_detail::winograd_serves(c)) return conv_detail::winograd_forward(c, x, weight, bias, relu, out, sink, set);
  const std::int64_t in = c.group_in(), rows = c.group_out(), positions = c.oh * c.ow;
  if (sink && c.groups > 1) {
    const Tensor whole = empty({c.n * c.out * positions});
    conv_forward(c, x, weight, bias, relu, whole.data<float>(), nullptr, set);
    return (*sink)(0, c.n, whole.data<float>());
  }
  for (std::int64_t group = 0; group < c.groups; ++group) {
    Correlation correlation{.planes = Planes(in, c.h, c.w, c.padding_h, c.padding_w, c.stride_h, c.stride_w, c.oh, c.ow,
                                             c.dilation_h * (c.kh - 1), c.dilation_w * (c.kw - 1)),
                            .taps = {},
                            .rows = rows,
                            .n = c.n,
                            .oh = c.oh,
                            .ow = c.ow,
                            .images = x + group * in * c.h * c.w,
                            .image_stride = c.in * c.h * c.w,
                            .out = out ? out + group * rows * positions : nullptr,
                            .out_image = c.out * positions,
                            .out_plane = positions,
                            .out_row = c.ow,
                            .out_column = 1,
                            .bias = bias ? bias + group * rows : nullptr,
                            .relu = relu};
    for (std::int64_t ky = 0; ky < c.kh; ++ky)
      for (std::int64_t kx = 0; kx < c.kw; ++kx) correlation.taps.push_back({ky * c.dilation_h, kx * c.dilation_w});
    correlation.run(set, weight + group * rows * in * c.kh * c.kw, sink);
  }
}

void conv_backward_data(const Conv& c, const float* grad, const float* weight, float* x_grad, InstructionSet set) {
  if (is_depthwise(c)) return depthwise_backward_data(c, grad, weight, x_grad);
  if (conv_detail::winograd_serves(c)) return conv_detail::winograd_backward_data(c, grad, weight, x_grad, set);
  std::vector<Phase> ys, xs;
  bool all = true;
  for (std::int64_t i = 0; i < std::min(c.stride_h, c.h); ++i)
    ys.push_back(phase_of(i, c.h, c.kh, c.stride_h, c.padding_h, c.dilation_h)), all = all && !ys.back().taps.empty();
  for (std::int64_t i = 0; i < std::min(c.stride_w, c.w); ++i)
    xs.push_back(phase_of(i, c.w, c.kw, c.stride_w, c.padding_w, c.dilation_w)), all = all && !xs.back().taps.empty();
  if (!all) std::fill_n(x_grad, c.n * c.in * c.h * c.w, 0.0f);  // no tap reaches some of it
  for (std::int64_t group = 0; group < c.groups; ++group)
    for (const Phase& y : ys)
      for (const Phase& x : xs)
        if (!y.taps.empty() && !x.taps.empty()) backward_data_of_phase(c, y, x, group, grad, weight, x_grad, set);
}

}  // namespace lockstep::cpu
