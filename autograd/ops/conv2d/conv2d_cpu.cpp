// Chooses an engine on the CPU.

#include <atomic>

#include "autograd/ops/conv2d/conv2d_kernels.h"
#include "core/copy.h"
#include "core/factories.h"
#include "core/kernel_table.h"

namespace lockstep {
namespace {

constexpr Conv2dEngine kIm2col{conv2d_forward_im2col, conv2d_backward_data_im2col, conv2d_backward_weight_im2col};
constexpr Conv2dEngine kOnednn{LOCKSTEP_ONEDNN_KERNEL(conv2d_forward_onednn),
                               LOCKSTEP_ONEDNN_KERNEL(conv2d_backward_data_onednn),
                               LOCKSTEP_ONEDNN_KERNEL(conv2d_backward_weight_onednn)};
#if defined(LOCKSTEP_OP_HAS_ONEDNN)
constexpr bool kHasOnednn = true;
#else
constexpr bool kHasOnednn = false;
#endif
constexpr Conv2dEngine kDirect{conv2d_forward_direct, conv2d_backward_data_direct, conv2d_backward_weight_direct};

std::atomic<Conv2dPath> forced_path{Conv2dPath::automatic};

const Conv2dEngine& choose(const Conv2dGeometry& g, DType dtype) {
  if (dtype == kFloat64) return kIm2col;
  const Conv2dPath path = forced_path.load(std::memory_order_relaxed);
  const bool direct = conv2d_direct_supports(g);
  if (path == Conv2dPath::im2col) return kIm2col;
  if (path == Conv2dPath::onednn && kHasOnednn) return kOnednn;
  if (direct && (path == Conv2dPath::direct || conv2d_direct_is_best(g))) return kDirect;
  return kHasOnednn ? kOnednn : kIm2col;
}

bool is_half(const Tensor& t) {
  return t.dtype() == kFloat16 || t.dtype() == kBFloat16;
}

Tensor widened(const Tensor& t) {
  return t.defined() ? cast_values(t, kFloat32) : t;
}

Tensor widened_empty(const Tensor& t) {
  return t.defined() ? empty(t.sizes()) : t;
}

}  // namespace

void set_conv2d_path(Conv2dPath path) {
  forced_path = path;
}

bool conv2d_path_available(Conv2dPath path) {
  return path != Conv2dPath::onednn || kHasOnednn;
}

void conv2d_forward_cpu(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& out, bool relu) {
  if (!is_half(x)) return choose(g, x.dtype()).forward(g, x, weight, bias, out, relu);
  const Tensor wide = widened_empty(out);
  choose(g, kFloat32).forward(g, widened(x), widened(weight), widened(bias), wide, relu);
  copy_values(wide, out);
}

void conv2d_backward_data_cpu(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad) {
  if (!is_half(grad)) return choose(g, grad.dtype()).backward_data(g, grad, weight, x_grad);
  const Tensor wide = widened_empty(x_grad);
  choose(g, kFloat32).backward_data(g, widened(grad), widened(weight), wide);
  copy_values(wide, x_grad);
}

void conv2d_backward_weight_cpu(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad,
                                const Tensor& bias_grad) {
  if (!is_half(grad)) return choose(g, grad.dtype()).backward_weight(g, grad, x, weight_grad, bias_grad);
  const Tensor wide_weight = widened_empty(weight_grad), wide_bias = widened_empty(bias_grad);
  choose(g, kFloat32).backward_weight(g, widened(grad), widened(x), wide_weight, wide_bias);
  copy_values(wide_weight, weight_grad);
  if (bias_grad.defined()) copy_values(wide_bias, bias_grad);
}

}  // namespace lockstep
