// Convolution by our own kernels of core/cpu/conv: float32, any geometry.

#include "lockstep/autograd/ops/conv2d/conv2d_own.h"

#include <algorithm>

#include "lockstep/autograd/ops/conv2d/conv2d_blocks.h"
#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/core/cpu/conv/winograd.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
bool conv2d_own_filters_minimally(const Conv2dGeometry& g) {
  return cpu::conv_detail::winograd_serves(conv2d_own_sizes(g));
}

void conv2d_forward_own(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& out, bool relu) {
  cpu::conv_forward(conv2d_own_sizes(g), x.data<float>(), weight.data<float>(),
                    bias.defined() ? bias.data<float>() : nullptr, relu, out.data<float>());
}

void conv2d_forward_own_to_sink(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                const Conv2dSink& sink) {
  cpu::conv_forward(conv2d_own_sizes(g), x.data<float>(), weight.data<float>(),
                    bias.defined() ? bias.data<float>() : nullptr, false, nullptr, &sink);
}

void conv2d_backward_data_own(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad) {
  cpu::conv_backward_data(conv2d_own_sizes(g), grad.data<float>(), weight.data<float>(), x_grad.data<float>());
}

void conv2d_backward_weight_own(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad,
                                const Tensor& bias_grad) {
  cpu::conv_backward_weight(conv2d_own_sizes(g), grad.data<float>(), x.data<float>(), weight_grad.data<float>());
  if (!bias_grad.defined()) return;
  float* const sums = bias_grad.data<float>();
  const std::int64_t plane = g.oh * g.ow;
  std::fill_n(sums, g.out, 0.0f);
  parallel_for(g.out, std::max<std::int64_t>(1, 65536 / (g.n * plane)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < g.n; ++i)
      conv2d_blocks::add_plane_sums(grad.data<float>() + (i * g.out + begin) * plane, end - begin, plane, sums + begin);
  });
}

}  // namespace lockstep
