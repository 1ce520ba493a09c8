#include "lockstep/core/cpu/conv/depthwise_wide.h"

#include <algorithm>

#include "lockstep/core/cpu/conv/depthwise_parts.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu::conv_detail {
namespace {

WidePlane plane_of(const Conv& c) {
  return {static_cast<int>(c.kh), static_cast<int>(c.stride_h), c.h, c.w, c.oh, c.ow};
}

// Asks for the lines of a plane, or of so much of a large one that the processor looks ahead by itself behind it.
inline void ask_for(const float* plane, std::int64_t size) {
  constexpr std::int64_t kMost = 4096, kLine = 16;  // elements
  for (std::int64_t j = 0; j < std::min(size, kMost); j += kLine) __builtin_prefetch(plane + j);
}

}  // namespace

bool wide_serves(const Conv& c, InstructionSet set) {
#if defined(__x86_64__)
  const bool side = c.kh == c.kw && (c.kh == 3 || c.kh == 5 || c.kh == 7);
  const bool step = c.stride_h == c.stride_w && c.stride_h <= 2;
  return set == InstructionSet::avx512 && side && step && c.padding_h == c.kh / 2 && c.padding_w == c.kw / 2 &&
         c.dilation_h == 1 && c.dilation_w == 1;
#else
  return false;
#endif
}

#if defined(__x86_64__)
void wide_forward(const Conv& c, const float* x, const float* weight, const float* bias, bool relu, float* out) {
  const WidePlane plane = plane_of(c);
  parallel_for(c.n * c.in, planes_per_task(c), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      wide_results(plane, x + i * c.h * c.w, weight + i % c.in * c.kh * c.kw, bias ? bias[i % c.in] : 0.0f, relu,
                   out + i * c.oh * c.ow);
  });
}

void wide_backward_data_of_stride_2(const Conv& c, const float* grad, const float* weight, float* x_grad) {
  const WidePlane plane = plane_of(c);
  parallel_for(c.n * c.in, planes_per_task(c), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      wide_image_gradient_of_step_2(plane, grad + i * c.oh * c.ow, weight + i % c.in * c.kh * c.kw,
                                    x_grad + i * c.h * c.w);
  });
}

void wide_backward_weight(const Conv& c, const float* grad, const float* x, float* weight_grad) {
  const WidePlane plane = plane_of(c);
  const std::int64_t taps = c.kh * c.kw;
  parallel_for(c.in, std::max<std::int64_t>(1, planes_per_task(c) / c.n), [&](std::int64_t begin, std::int64_t end) {
    const Tensor chains = empty({taps * kChains});
    for (std::int64_t channel = begin; channel < end; ++channel) {
      std::fill_n(chains.data<float>(), taps * kChains, 0.0f);
      for (std::int64_t i = 0; i < c.n; ++i) {
        const std::int64_t at = i * c.in + channel;
        // A channel's planes of neighbouring images lie far apart.
        if (i + 1 < c.n) {
          ask_for(x + (at + c.in) * c.h * c.w, c.h * c.w);
          ask_for(grad + (at + c.in) * c.oh * c.ow, c.oh * c.ow);
        }
        wide_weight_chains(plane, x + at * c.h * c.w, grad + at * c.oh * c.ow, chains.data<float>());
      }
      add_chains(taps, chains.data<float>(), weight_grad + channel * taps);
    }
  });
}
#else
void wide_results(const TapRows&, const float*, const float*, float, bool, float*) {}
void wide_forward(const Conv&, const float*, const float*, const float*, bool, float*) {}
void wide_backward_data_of_stride_2(const Conv&, const float*, const float*, float*) {}
void wide_backward_weight(const Conv&, const float*, const float*, float*) {}
#endif

}  // namespace lockstep::cpu::conv_detail
