// Which kernels compute a convolution, and what surrounds the library's products: bias and relu where it does not add
// them itself, and the bias's gradient.

#include "lockstep/autograd/ops/conv2d/conv2d_depthwise.h"
#include "lockstep/autograd/ops/conv2d/conv2d_device.h"
#include "lockstep/autograd/ops/conv2d/conv2d_portable.h"
#include "lockstep/autograd/ops/support/channel_map.cuh"
#include "lockstep/autograd/ops/support/channel_sums.cuh"
#include "lockstep/core/cuda/math_mode.h"

namespace lockstep {
namespace {

template <typename T>
struct BiasRelu {
  using C = compute_t<T>;
  const T* bias;  // null: 0
  bool relu;

  __device__ C at(std::int64_t c) const { return bias ? cuda::from_element<C>(bias[c]) : C(0); }
  __device__ C operator()(C level, C x) const {
    const C value = x + level;
    return relu && value < C(0) ? C(0) : value;
  }
};

template <typename T>
struct Gradients {
  const T* grad;
  template <int W>
  __device__ cuda::Pack<compute_t<T>, W> pack(std::int64_t offset) const {
    const auto read = *reinterpret_cast<const cuda::Pack<T, W>*>(grad + offset);
    cuda::Pack<compute_t<T>, W> result;
#pragma unroll
    for (int j = 0; j < W; ++j) result.value[j] = cuda::from_element<compute_t<T>>(read.value[j]);
    return result;
  }
};

ChannelLayout layout_of(const Conv2dGeometry& g) {
  if (g.channels_last) return {g.n * g.oh * g.ow, g.out, 1};
  return {g.n, g.out, g.oh * g.ow};
}

}  // namespace

void conv2d_forward_cuda(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& out, bool relu) {
  if (cuda::portable()) return conv2d_portable::forward(g, x, weight, bias, out, relu);
  if (conv2d_depthwise::supports(g, x.dtype())) return conv2d_depthwise::forward(g, x, weight, bias, out, relu);
  if (conv2d_device::forward(g, x, weight, bias, out, relu) || (!bias.defined() && !relu)) return;
  dispatch_floating(out.dtype(), "conv2d", [&]<typename T>() {
    cuda::channel_map<T>(out, layout_of(g), BiasRelu<T>{bias.defined() ? bias.data<T>() : nullptr, relu}, out);
  });
}

bool conv2d_supports_cuda(const Conv2dGeometry& g, const Tensor& x) {
  if (cuda::portable()) return false;
  return g.groups == 1 ? conv2d_device::supports(g, x) : conv2d_depthwise::supports(g, x.dtype());
}

void conv2d_backward_data_cuda(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight,
                               const Tensor& x_grad) {
  cuda::require_not_portable("the gradient of conv2d other than under a max_pool2d of 2 x 2");
  if (conv2d_depthwise::supports(g, grad.dtype())) return conv2d_depthwise::backward_data(g, grad, weight, x_grad);
  conv2d_device::backward_data(g, grad, weight, x_grad);
}

void conv2d_backward_weight_cuda(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x,
                                 const Tensor& weight_grad, const Tensor& bias_grad) {
  cuda::require_not_portable("the gradient of conv2d other than under a max_pool2d of 2 x 2");
  if (conv2d_depthwise::supports(g, grad.dtype()))
    conv2d_depthwise::backward_weight(g, grad, x, weight_grad);
  else
    conv2d_device::backward_weight(g, grad, x, weight_grad);
  if (!bias_grad.defined()) return;
  dispatch_floating(grad.dtype(), "conv2d", [&]<typename T>() {
    cuda::channel_sums<T>(Gradients<T>{grad.data<T>()}, bias_grad, layout_of(g), cuda::aligned(grad.raw_data(), 16));
  });
}

}  // namespace lockstep
