#include "lockstep/autograd/ops/conv2d/conv2d_computation.h"

#include "lockstep/autograd/ops/conv2d/conv2d_pool_kernels.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_computation.h"
#include "lockstep/autograd/ops/unary/unary_computation.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<Conv2dForward> conv2d_forward{
    "conv2d", conv2d_forward_cpu, LOCKSTEP_CUDA_KERNEL(conv2d_forward_cuda), conv2d_forward_reference};
constexpr KernelTable<Conv2dBackwardData> conv2d_backward_data{"conv2d backward data", conv2d_backward_data_cpu,
                                                               LOCKSTEP_CUDA_KERNEL(conv2d_backward_data_cuda),
                                                               conv2d_backward_data_reference};
constexpr KernelTable<Conv2dBackwardWeight> conv2d_backward_weight{"conv2d backward weight", conv2d_backward_weight_cpu,
                                                                   LOCKSTEP_CUDA_KERNEL(conv2d_backward_weight_cuda),
                                                                   conv2d_backward_weight_reference};
constexpr KernelTable<Conv2dSupports> conv2d_supports{"conv2d", nullptr, LOCKSTEP_CUDA_KERNEL(conv2d_supports_cuda)};
// As a reference, the operations have kernels of their own.
constexpr KernelTable<Conv2dPoolForward> conv2d_pool_forward{"conv2d and max_pool2d", conv2d_pool_forward_cpu,
                                                             LOCKSTEP_CUDA_KERNEL(conv2d_pool_forward_cuda)};
constexpr KernelTable<Conv2dPoolBackward> conv2d_pool_backward{
    "conv2d backward under max_pool2d", conv2d_pool_backward_cpu, LOCKSTEP_CUDA_KERNEL(conv2d_pool_backward_cuda)};

bool is_pooled(const Conv2dGeometry& g, const Tensor& like) {
  if (like.device().is_cuda()) return g.oh >= 2 && g.ow >= 2;
  // Of half types, whose pools are operations of their own: short sums are computed sooner than their zeros are found.
  constexpr std::int64_t kTerms = 128;
  const bool pays = like.dtype() == kFloat32 || (element_size(like.dtype()) == 2 && g.in * g.kh * g.kw >= kTerms);
  return pays && !reference_kernels() && conv2d_pool_supports(g);
}

bool is_pool_of(const Conv2dGeometry& g, const Pool2dGeometry& pool) {
  return is_max_pool_2x2(pool) && pool.planes == g.n * g.out && pool.h == g.oh && pool.w == g.ow;
}

bool nothing_to_multiply(const Conv2dGeometry& g) {
  return g.n == 0 || g.in == 0 || g.out == 0 || g.h == 0 || g.w == 0 || g.oh == 0 || g.ow == 0;
}

/// Finds gradient and positions of the pool's result if `grad` is a pool's gradient.
bool find_pooled(const Conv2dGeometry& g, const Tensor& grad, Tensor& pooled, Tensor& positions) {
  if (!is_pooled(g, grad)) return false;
  if (auto* const gradient = pending_result_of<PooledGradient>(grad); gradient && is_pool_of(g, gradient->geometry())) {
    const auto inputs = gradient->pending_inputs();
    if (!inputs.empty()) {
      pooled = inputs[0];
      positions = inputs[1];
      return true;
    }
  }
  return grad.device().is_cpu() && conv2d_pool_compress(g, as_contiguous(grad), pooled, positions);
}

}  // namespace

void Conv2dComputation::compute() {
  const Tensor& x = input(0);
  if (geometry_.channels_last) return deliver(0, copy_contiguous(in_order_of_channels(compute_channels_last({}))));
  const Tensor out = empty({geometry_.n, geometry_.out, geometry_.oh, geometry_.ow}, options_of(x));
  conv2d_forward(x)(geometry_, x, input(1), input(2), out, false);
  deliver(0, out);
}

bool Conv2dComputation::compute_through(std::span<Computation* const> links) {
  const Conv2dGeometry& g = geometry_;
  MaxPool2dComputation* pool = nullptr;
  ReluPlace relu = ReluPlace::none;  // a relu after another changes nothing
  for (Computation* const link : links) {
    if (const auto* unary = dynamic_cast<const UnaryComputation*>(link)) {
      if (unary->op() != UnaryOp::relu) return false;
      if (relu == ReluPlace::none) relu = pool ? ReluPlace::after : ReluPlace::before;
    } else {
      if (pool) return false;
      pool = dynamic_cast<MaxPool2dComputation*>(link);
      if (!pool || !is_pool_of(g, pool->geometry())) return false;
    }
  }
  const Tensor& x = input(0);
  if (g.channels_last) {
    if (pool) return false;
    deliver_to(*links.back(), 0, copy_contiguous(in_order_of_channels(compute_channels_last(links))));
    return true;
  }
  if (!pool) {
    const Tensor out = empty({g.n, g.out, g.oh, g.ow}, options_of(x));
    conv2d_forward(x)(g, x, input(1), input(2), out, true);
    deliver_to(*links.back(), 0, out);
    return true;
  }
  if (!is_pooled(g, x)) return false;
  const Tensor out = empty({g.n, g.out, g.oh / 2, g.ow / 2}, options_of(x));
  const Tensor positions = wanted_of(*pool, 1) ? empty(out.sizes(), {.dtype = kUInt8, .device = x.device()}) : Tensor();
  conv2d_pool_forward(x)(g, x, input(1), input(2), relu, out, positions);
  deliver_to(*links.back(), 0, out);
  if (positions.defined()) deliver_to(*pool, 1, positions);
  return true;
}

Tensor Conv2dComputation::compute_channels_last(std::span<Computation* const> links) {
  if (!geometry_.channels_last && !conv2d_takes_channels_last(geometry_, input(0))) return {};
  for (const Computation* const link : links)
    if (const auto* unary = dynamic_cast<const UnaryComputation*>(link); !unary || unary->op() != UnaryOp::relu)
      return {};
  Conv2dGeometry g = geometry_;
  const auto operand = [&](std::size_t i) { return geometry_.channels_last ? input(i) : to_channels_last(input(i)); };
  const Tensor x = operand(0), filters = operand(1);
  g.channels_last = true;
  const Tensor out = empty({g.n, g.oh, g.ow, g.out}, options_of(x));
  conv2d_forward(x)(g, x, filters, input(2), out, !links.empty());
  return out;
}

bool conv2d_takes_channels_last(Conv2dGeometry g, const Tensor& x) {
  constexpr std::int64_t kTogether = 8;  // channels that tensor cores take at once
  if (!x.device().is_cuda() || !fusion() || reference_kernels()) return false;
  const bool on_tensor_cores = element_size(x.dtype()) == 2 || (x.dtype() == kFloat32 && cuda::allow_tf32());
  // The library fills up the few channels of a network's own images.
  const bool few = g.groups == 1 && g.in < kTogether;
  if (!on_tensor_cores || g.out % kTogether != 0 || (g.in % kTogether != 0 && !few)) return false;
  g.channels_last = true;
  return conv2d_supports(x).kernel(g, x);
}

bool conv2d_backward_channels_last(Conv2dGeometry g, const Tensor& grad, const Tensor& x, const Tensor& weight,
                                   std::array<bool, 3> wanted, TensorList& result) {
  if (!is_laid_out(x) && !is_laid_out(grad)) return false;
  if (nothing_to_multiply(g) || !conv2d_takes_channels_last(g, x)) return false;
  g.channels_last = true;
  const Tensor incoming = to_channels_last(grad), images = to_channels_last(x), filters = to_channels_last(weight);
  if (wanted[0]) {
    const Tensor x_grad = empty_like(images);
    conv2d_backward_data(x)(g, incoming, filters, x_grad);
    result[0] = from_channels_last(x_grad);
  }
  if (wanted[1] || wanted[2]) {
    const Tensor weight_grad = empty_like(filters);
    if (wanted[2]) result[2] = empty({g.out}, options_of(weight));
    conv2d_backward_weight(x)(g, incoming, images, weight_grad, result[2]);
    result[1] = from_channels_last(weight_grad);
  }
  return true;
}

void conv2d_backward(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight,
                     const Tensor& x_grad, const Tensor& weight_grad, const Tensor& bias_grad) {
  Tensor pooled, positions;
  if (find_pooled(g, grad, pooled, positions))
    return conv2d_pool_backward(x)(g, pooled, positions, x, weight, x_grad, weight_grad, bias_grad);
  const Tensor dense = as_contiguous(grad);
  if (x_grad.defined()) conv2d_backward_data(x)(g, dense, weight, x_grad);
  if (weight_grad.defined()) conv2d_backward_weight(x)(g, dense, x, weight_grad, bias_grad);
}

void conv2d_values(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& out) {
  if (nothing_to_multiply(g)) return fill_values(out, 0);
  conv2d_forward(out)(g, x, weight, Tensor(), out, false);
}

void conv2d_data_gradient(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad) {
  if (nothing_to_multiply(g)) return fill_values(x_grad, 0);
  conv2d_backward_data(x_grad)(g, grad, weight, x_grad);
}

void conv2d_weight_gradient(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad) {
  if (nothing_to_multiply(g)) return fill_values(weight_grad, 0);
  conv2d_backward_weight(x)(g, grad, x, weight_grad, Tensor());
}

}  // namespace lockstep
