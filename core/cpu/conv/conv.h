#pragma once

#include <cstdint>
#include <functional>

#include "lockstep/core/cpu/instruction_set.h"

namespace lockstep::cpu {

/// The sizes of a convolution, as of the op conv2d: x [n, in, h, w], weight [out, in / groups, kh, kw], result
/// [n, out, oh, ow]; all at least 1.
struct Conv {
  std::int64_t n = 1, in = 1, h = 1, w = 1;
  std::int64_t out = 1, kh = 1, kw = 1;
  std::int64_t oh = 1, ow = 1;
  std::int64_t stride_h = 1, stride_w = 1, padding_h = 0, padding_w = 0, dilation_h = 1, dilation_w = 1;
  std::int64_t groups = 1;

  std::int64_t group_in() const { return in / groups; }
  std::int64_t group_out() const { return out / groups; }
};

/// Takes the results of images [first, first + count), values [count, out, oh, ow], on the thread that computed them.
using ConvSink = std::function<void(std::int64_t first, std::int64_t count, const float* values)>;

// Convolutions by our own kernels, as products whose panels are packed from the images (Note [Implicit products]). On
// the threads of parallel_for; the bits of a result depend on the sizes and the operands that it is computed from
// alone, neither on the instruction set nor on the number of threads.

/// out = conv(x, weight) + bias, then max(0, out) if `relu`. `bias` may be null. With a sink, `out` is not used: each
/// block of images is handed on while it lies in the cache.
void conv_forward(const Conv& conv, const float* x, const float* weight, const float* bias, bool relu, float* out,
                  const ConvSink* sink = nullptr, InstructionSet set = instruction_set());
/// The gradient of x.
void conv_backward_data(const Conv& conv, const float* grad, const float* weight, float* x_grad,
                        InstructionSet set = instruction_set());
/// The gradient of weight.
void conv_backward_weight(const Conv& conv, const float* grad, const float* x, float* weight_grad,
                          InstructionSet set = instruction_set());

}  // namespace lockstep::cpu
