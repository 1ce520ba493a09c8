#include "lockstep/core/cpu/conv/bfloat16_conv.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "lockstep/core/cpu/conv/bfloat16_correlation.h"
#include "lockstep/core/cpu/conv/phases.h"
#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/cpu/gemm/bfloat16_product.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

using conv_detail::Bfloat16Correlation;
using conv_detail::Bfloat16Images;
using conv_detail::Phase;
using conv_detail::Planes;

constexpr std::int64_t kFewChannels = 12;         // that leave the kernels' tiles half empty
constexpr std::int64_t kClearElements = 1 << 16;  // of a task

}  // namespace

bool conv_goes_by_products(const Conv& c) {
  // So that the places of a group's elements and the steps of a chain are numbers that the kernels have room for.
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() / 2;
  const std::int64_t reach_h = c.dilation_h * (c.kh - 1), reach_w = c.dilation_w * (c.kw - 1);
  const std::int64_t padded =
      (c.h + 2 * c.padding_h + reach_h + c.stride_h) * (c.w + 2 * c.padding_w + reach_w + c.stride_w);
  return c.group_in() >= kFewChannels && c.group_out() >= kFewChannels && reach_w / c.stride_w <= c.ow &&
         c.ow <= 4096 && reach_w <= c.w && std::max(c.group_in(), c.group_out()) <= kMost / padded;
}

bool conv_bfloat16_forward(const Conv& c, const BFloat16* x, const BFloat16* weight, const float* bias, bool relu,
                           BFloat16* out) {
  if (!has_bfloat16_pairs()) return false;
  const std::int64_t rows = c.group_out(), positions = c.oh * c.ow;
  const Planes planes(c.group_in(), c.h, c.w, c.padding_h, c.padding_w, c.stride_h, c.stride_w, c.oh, c.ow,
                      c.dilation_h * (c.kh - 1), c.dilation_w * (c.kw - 1));
  Bfloat16Correlation correlation{.planes = planes,
                                  .taps = {},
                                  .rows = rows,
                                  .n = c.n,
                                  .oh = c.oh,
                                  .ow = c.ow,
                                  .gather = {},
                                  .weights = weight,
                                  .out = out,
                                  .out_image = c.out * positions,
                                  .out_group = rows * positions,
                                  .out_plane = positions,
                                  .out_row = c.ow,
                                  .out_column = 1,
                                  .bias = bias,
                                  .relu = relu,
                                  .groups = c.groups};
  for (std::int64_t ky = 0; ky < c.kh; ++ky)
    for (std::int64_t kx = 0; kx < c.kw; ++kx) correlation.taps.push_back({ky * c.dilation_h, kx * c.dilation_w});
  return correlation.run(conv_detail::bfloat16_images(planes, x, c.n, c.groups));
}

bool conv_bfloat16_backward_data(const Conv& c, const BFloat16* grad, const BFloat16* weight, BFloat16* x_grad) {
  if (!has_bfloat16_pairs()) return false;
  const std::vector<Phase> ys = conv_detail::phases_of(c.h, c.kh, c.stride_h, c.padding_h, c.dilation_h);
  const std::vector<Phase> xs = conv_detail::phases_of(c.w, c.kw, c.stride_w, c.padding_w, c.dilation_w);
  const auto reached = [](const Phase& phase) { return !phase.taps.empty(); };
  if (std::none_of(ys.begin(), ys.end(), reached) || std::none_of(xs.begin(), xs.end(), reached)) {
    std::fill_n(x_grad, c.n * c.in * c.h * c.w, BFloat16{});  // no result sees any of x
    return true;
  }
  const Planes planes = conv_detail::planes_of(c, ys, xs);
  const Bfloat16Images images = conv_detail::bfloat16_images(planes, grad, c.n, c.groups);
  const std::int64_t in = c.group_in(), out = c.group_out(), kernel = c.kh * c.kw;
  if (!std::all_of(ys.begin(), ys.end(), reached) || !std::all_of(xs.begin(), xs.end(), reached))
    parallel_for(c.n * c.in, std::max<std::int64_t>(1, kClearElements / (c.h * c.w)),
                 [&](std::int64_t begin, std::int64_t end) {
                   std::fill(x_grad + begin * c.h * c.w, x_grad + end * c.h * c.w, BFloat16{});
                 });
  for (const Phase& y : ys)
    for (const Phase& x : xs) {
      if (!reached(y) || !reached(x)) continue;
      const auto taps = static_cast<std::int64_t>(y.taps.size() * x.taps.size());
      const auto gather = [&](std::int64_t first, std::int64_t count, BFloat16* to) {
        const BFloat16* from = weight + (first / in * out * in + first % in) * kernel;
        for (std::int64_t o = 0; o < out; ++o, from += in * kernel)
          for (std::int64_t i = 0; i < count; ++i) {
            BFloat16* tap = to + (i * out + o) * taps;
            if (taps == 9 && kernel == 9) {  // all of 3 x 3, the most usual: one copy of a known length
              std::memcpy(tap, from + i * 9, 9 * sizeof(BFloat16));
              continue;
            }
            for (const std::int64_t ky : y.taps)
              for (const std::int64_t kx : x.taps) *tap++ = from[i * kernel + ky * c.kw + kx];
          }
      };
      Bfloat16Correlation correlation{.planes = planes,
                                      .taps = {},
                                      .rows = in,
                                      .n = c.n,
                                      .oh = y.count,
                                      .ow = x.count,
                                      .gather = gather,
                                      .weights = nullptr,
                                      .out = x_grad + y.first * c.w + x.first,
                                      .out_image = c.in * c.h * c.w,
                                      .out_group = in * c.h * c.w,
                                      .out_plane = c.h * c.w,
                                      .out_row = c.stride_h * c.w,
                                      .out_column = c.stride_w,
                                      .groups = c.groups};
      for (const std::int64_t dy : y.offsets)
        for (const std::int64_t dx : x.offsets) correlation.taps.push_back({dy + planes.top, dx + planes.left});
      if (!correlation.run(images)) return false;
    }
  return true;
}

}  // namespace lockstep::cpu
