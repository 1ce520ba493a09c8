#pragma once

// Depthwise convolutions by vectors of eight that read images where they lie. A tap's vector is loaded where the tap
// reads, and only vectors at the ends of a row set lanes beside the image to 0. For .cpp files only.

#include "lockstep/core/cpu/conv/conv.h"

namespace lockstep::cpu::conv_detail {

/// Whether the functions below compute it: square kernels of 3, 5 or 7 with one stride of 1 or 2.
bool eight_serves(const Conv& conv);
void eight_forward(const Conv& conv, const float* x, const float* weight, const float* bias, bool relu, float* out);
void eight_backward_weight(const Conv& conv, const float* grad, const float* x, float* weight_grad);

}  // namespace lockstep::cpu::conv_detail
