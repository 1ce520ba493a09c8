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
using conv_detail::depthwise_forward;
using conv_detail::is_depthwise;
using conv_detail::Planes;

}  // namespace

void conv_forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out,
                  const ConvSink* sink, InstructionSet set) {
  if (sink && c.groups > 1) {
    const Tensor whole = empty({c.n * c.out * c.oh * c.ow});
    conv_forward(c, x, weight, bias, relu, whole.data<float>(), nullptr, set);
    return (*sink)(0, c.n, whole.data<float>());
  }
  if (is_depthwise(c)) return depthwise_forward(c, x, weight, bias, relu, out, set);
  if (conv_detail::winograd_serves(c)) return conv_detail::winograd_forward(c, x, weight, bias, relu, out, sink, set);
  conv_detail::product_forward(c, x, weight, bias, relu, out, sink, set);
}

void conv_detail::product_forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu,
                                  float* out, const ConvSink* sink, InstructionSet set) {
  const std::int64_t in = c.group_in(), rows = c.group_out(), positions = c.oh * c.ow;
  Correlation correlation{.planes = Planes(in, c.h, c.w, c.padding_h, c.padding_w, c.stride_h, c.stride_w, c.oh, c.ow,
                                           c.dilation_h * (c.kh - 1), c.dilation_w * (c.kw - 1)),
                          .taps = {},
                          .rows = rows,
                          .n = c.n,
                          .oh = c.oh,
                          .ow = c.ow,
                          .images = x,
                          .image_stride = c.in * c.h * c.w,
                          .out = out,
                          .out_image = c.out * positions,
                          .out_plane = positions,
                          .out_row = c.ow,
                          .out_column = 1,
                          .bias = bias,
                          .relu = relu,
                          .groups = c.groups,
                          .image_group = in * c.h * c.w,
                          .out_group = rows * positions};
  for (std::int64_t ky = 0; ky < c.kh; ++ky)
    for (std::int64_t kx = 0; kx < c.kw; ++kx) correlation.taps.push_back({ky * c.dilation_h, kx * c.dilation_w});
  correlation.run(set, weight, sink);
}

}  // namespace lockstep::cpu
