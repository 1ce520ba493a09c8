// Convolutions of bfloat16 that go by products: see Note [Convolutions of bfloat16].

#include <algorithm>

#include "lockstep/autograd/ops/conv2d/conv2d_blocks.h"
#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/autograd/ops/conv2d/conv2d_own.h"
#include "lockstep/autograd/ops/conv2d/conv2d_widened.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/conv/bfloat16_conv.h"
#include "lockstep/core/cpu/conv/winograd.h"
#include "lockstep/core/cpu/half_rows.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep {
namespace {

using conv2d_widened::widened;
using conv2d_widened::widened_empty;

}  // namespace

bool conv2d_goes_by_products(const Conv2dGeometry& g) {
  return cpu::conv_goes_by_products(conv2d_own_sizes(g));
}

void conv2d_forward_bfloat16(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const Tensor& out, bool relu) {
  const Tensor wide_bias = widened(bias);
  const float* const shifts = bias.defined() ? wide_bias.data<float>() : nullptr;
  if (cpu::conv_bfloat16_forward(conv2d_own_sizes(g), x.data<BFloat16>(), weight.data<BFloat16>(), shifts, relu,
                                 out.data<BFloat16>()))
    return;
  const Tensor wide = widened_empty(out);
  cpu::conv_detail::product_forward(conv2d_own_sizes(g), widened(x).data<float>(), widened(weight).data<float>(),
                                    shifts, relu, wide.data<float>(), nullptr, cpu::instruction_set());
  copy_values(wide, out);
}

void conv2d_backward_data_bfloat16(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight,
                                   const Tensor& x_grad) {
  if (cpu::conv_bfloat16_backward_data(conv2d_own_sizes(g), grad.data<BFloat16>(), weight.data<BFloat16>(),
                                       x_grad.data<BFloat16>()))
    return;
  const Tensor wide = widened_empty(x_grad);
  cpu::conv_detail::product_backward_data(conv2d_own_sizes(g), widened(grad).data<float>(),
                                          widened(weight).data<float>(), wide.data<float>(), cpu::instruction_set());
  copy_values(wide, x_grad);
}

void conv2d_backward_weight_bfloat16(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x,
                                     const Tensor& weight_grad, const Tensor& bias_grad) {
  if (!cpu::conv_bfloat16_backward_weight(conv2d_own_sizes(g), grad.data<BFloat16>(), x.data<BFloat16>(),
                                          weight_grad.data<BFloat16>())) {
    const Tensor wide = widened_empty(weight_grad);
    cpu::conv_detail::product_backward_weight(conv2d_own_sizes(g), widened(grad).data<float>(),
                                              widened(x).data<float>(), wide.data<float>(), cpu::instruction_set());
    copy_values(wide, weight_grad);
  }
  if (!bias_grad.defined()) return;
  const Tensor sums = widened_empty(bias_grad);
  const std::int64_t plane = g.oh * g.ow;
  parallel_for(g.out, std::max<std::int64_t>(1, 65536 / (g.n * plane)), [&](std::int64_t begin, std::int64_t end) {
    const Tensor row = empty({plane});
    for (std::int64_t c = begin; c < end; ++c) {
      float sum = 0;
      for (std::int64_t i = 0; i < g.n; ++i) {
        cpu::widen_row(grad.data<BFloat16>() + (i * g.out + c) * plane, plane, row.data<float>());
        conv2d_blocks::add_plane_sums(row.data<float>(), 1, plane, &sum);
      }
      sums.data<float>()[c] = sum;
    }
  });
  copy_values(sums, bias_grad);
}

}  // namespace lockstep
