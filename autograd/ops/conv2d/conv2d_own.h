#pragma once

// What our own kernels of core/cpu/conv call an operation's sizes. For .cpp files only.

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/cpu/conv/conv.h"

namespace lockstep {

inline cpu::Conv conv2d_own_sizes(const Conv2dGeometry& g) {
  return {.n = g.n,
          .in = g.in,
          .h = g.h,
          .w = g.w,
          .out = g.out,
          .kh = g.kh,
          .kw = g.kw,
          .oh = g.oh,
          .ow = g.ow,
          .stride_h = g.stride.h,
          .stride_w = g.stride.w,
          .padding_h = g.padding.h,
          .padding_w = g.padding.w,
          .dilation_h = g.dilation.h,
          .dilation_w = g.dilation.w,
          .groups = g.groups};
}

}  // namespace lockstep
