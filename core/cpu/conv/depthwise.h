#pragma once

#include "lockstep/core/cpu/conv/conv.h"

namespace lockstep::cpu::conv_detail {

/// One channel to a group, in and out: sums over taps alone, which are no products of matrices.
inline bool is_depthwise(const Conv& c) {
  return c.groups > 1 && c.group_in() == 1 && c.group_out() == 1;
}

/// As conv_forward() and its like. An element of the result, or of the gradient of x, is one chain of fused
/// multiply-adds over the taps. The gradient of a weight is summed in 16 chains, for columns of the same remainder,
/// over the rows of all images; these are added as a tree.
void depthwise_forward(const Conv& conv, const float* x, const float* weight, const float* bias, bool relu, float* out,
                       InstructionSet set);
void depthwise_backward_data(const Conv& conv, const float* grad, const float* weight, float* x_grad,
                             InstructionSet set);
void depthwise_backward_weight(const Conv& conv, const float* grad, const float* x, float* weight_grad,
                               InstructionSet set);

}  // namespace lockstep::cpu::conv_detail
