#pragma once

// What the ways to compute a depthwise convolution share, and the one by wide vectors with masks. For .cpp files
// only.

#include <algorithm>
#include <cstdint>

#include "lockstep/core/cpu/conv/conv.h"

namespace lockstep::cpu::conv_detail {

inline constexpr std::int64_t kChains = 16;  // of a weight's gradient

inline std::int64_t planes_per_task(const Conv& c) {
  constexpr std::int64_t kTaskMacs = 200'000;
  return std::max<std::int64_t>(1, kTaskMacs / (c.oh * c.ow * c.kh * c.kw));
}

/// The chains of each tap as a tree, to the gradient of its weight. `chains` is overwritten.
inline void add_chains(std::int64_t taps, float* chains, float* weight_grad) {
  for (std::int64_t tap = 0; tap < taps; ++tap) {
    float* const sum = chains + tap * kChains;
    for (std::int64_t half = kChains / 2; half > 0; half /= 2)
      for (std::int64_t j = 0; j < half; ++j) sum[j] += sum[j + half];
    weight_grad[tap] = sum[0];
  }
}

/// Whether the functions below compute it: on AVX-512, with columns one or two apart.
bool wide_serves(const Conv& conv, InstructionSet set);
void wide_forward(const Conv& conv, const float* x, const float* weight, const float* bias, bool relu, float* out);
/// For strides of 2 without dilation.
void wide_backward_data_of_stride_2(const Conv& conv, const float* grad, const float* weight, float* x_grad);
/// For kernels of 5 x 5 and 7 x 7.
void wide_backward_weight(const Conv& conv, const float* grad, const float* x, float* weight_grad);

}  // namespace lockstep::cpu::conv_detail
