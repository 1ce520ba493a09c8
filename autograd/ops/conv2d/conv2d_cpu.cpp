// Chooses an engine on the CPU.

#include <atomic>

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"
#include "lockstep/autograd/ops/conv2d/conv2d_widened.h"
#include "lockstep/core/computation.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"
#include "lockstep/core/profile_flops.h"

namespace lockstep {

using conv2d_widened::is_half;
using conv2d_widened::widened;
using conv2d_widened::widened_empty;

namespace {

void im2col_to_sink(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                    const Conv2dSink& sink) {
  const Tensor out = empty({g.n, g.out, g.oh, g.ow});
  conv2d_forward_im2col(g, x, weight, bias, out, false);
  sink(0, g.n, out.data<float>());
}

constexpr Conv2dEngine kIm2col{conv2d_forward_im2col, conv2d_backward_data_im2col, conv2d_backward_weight_im2col,
                               im2col_to_sink};
constexpr Conv2dEngine kOwn{conv2d_forward_own, conv2d_backward_data_own, conv2d_backward_weight_own,
                            conv2d_forward_own_to_sink};
constexpr Conv2dEngine kOnednn{
    LOCKSTEP_ONEDNN_KERNEL(conv2d_forward_onednn), LOCKSTEP_ONEDNN_KERNEL(conv2d_backward_data_onednn),
    LOCKSTEP_ONEDNN_KERNEL(conv2d_backward_weight_onednn), LOCKSTEP_ONEDNN_KERNEL(conv2d_forward_onednn_to_sink)};
#if defined(LOCKSTEP_OP_HAS_ONEDNN)
constexpr bool kHasOnednn = true;
#else
constexpr bool kHasOnednn = false;
#endif
constexpr Conv2dEngine kDirect{conv2d_forward_direct, conv2d_backward_data_direct, conv2d_backward_weight_direct,
                               conv2d_forward_direct_to_sink};

std::atomic<Conv2dPath> forced_path{Conv2dPath::automatic};

enum class Pass : unsigned char { forward, backward_data, backward_weight };

// Where the direct kernels beat products on AVX2 and AVX-512 taken together: few channels, which leave tiles empty. The
// choice must not depend on the processor, as the order of sums does on the engine.
bool direct_beats_own(const Conv2dGeometry& g, Pass pass) {
  if (pass != Pass::backward_weight && conv2d_own_filters_minimally(g)) return false;
  switch (pass) {
    case Pass::forward:
      return g.in <= 4 || (g.in <= 16 && g.out <= 32);
    case Pass::backward_data:
      return conv2d_direct_scatters(g) ? g.in <= 16 && g.out <= 32 : g.in <= 32 && g.out <= 16;
    case Pass::backward_weight:
      return g.in <= 4 && g.out <= 16;
  }
  return false;
}

// Where the direct kernels beat oneDNN, measured on Zen 3 and Zen 4: few channels, as oneDNN's layouts hold 8 or 16 at
// a time, but enough taps to pay for a tile's loads and stores. Without oneDNN they beat image columns nearly always.
bool direct_is_best(const Conv2dGeometry& g, Pass pass) {
  if (!conv2d_direct_supports(g) || g.kw < 2) return false;
  if (cpu::kernels() == cpu::Kernels::own) return direct_beats_own(g, pass);
  if (!kHasOnednn) return g.in <= 128;
  if (g.in * g.kh * g.kw < 16) return false;
  switch (pass) {
    case Pass::forward:
      return g.in <= 16;
    case Pass::backward_data:
      return g.in <= 16 && g.out <= 32 && conv2d_direct_scatters(g);
    case Pass::backward_weight:
      return g.in <= 32;
  }
  return false;
}

const Conv2dEngine& choose(const Conv2dGeometry& g, DType dtype, Pass pass) {
  if (dtype == kFloat64) return kIm2col;
  const Conv2dPath path = forced_path.load(std::memory_order_relaxed);
  if (path == Conv2dPath::im2col) return kIm2col;
  if (path == Conv2dPath::own) return kOwn;
  if (path == Conv2dPath::onednn && kHasOnednn) return kOnednn;
  if (path == Conv2dPath::direct ? conv2d_direct_supports(g) : direct_is_best(g, pass)) return kDirect;
  if (cpu::kernels() == cpu::Kernels::own) return kOwn;
  return kHasOnednn ? kOnednn : kOwn;
}

// Conv2dPath and a library's kernels are for float32.
bool by_products(const Conv2dGeometry& g, const Tensor& x) {
  return x.dtype() == kBFloat16 && cpu::kernels() == cpu::Kernels::own &&
         forced_path.load(std::memory_order_relaxed) == Conv2dPath::automatic && conv2d_goes_by_products(g);
}

}  // namespace

void set_conv2d_path(Conv2dPath path) {
  Computation::settle_all();
  forced_path = path;
}

bool conv2d_forward_is_direct(const Conv2dGeometry& g) {
  return conv2d_direct_supports(g) && g.kw >= 2 && direct_beats_own(g, Pass::forward);
}

bool conv2d_path_available(Conv2dPath path) {
  return path != Conv2dPath::onednn || kHasOnednn;
}

void conv2d_forward_cpu(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const Tensor& out, bool relu) {
  profile::add_multiply_adds(g.n * g.macs());
  if (!is_half(x)) return choose(g, x.dtype(), Pass::forward).forward(g, x, weight, bias, out, relu);
  if (by_products(g, x)) return conv2d_forward_bfloat16(g, x, weight, bias, out, relu);
  const Tensor wide = widened_empty(out);
  choose(g, kFloat32, Pass::forward).forward(g, widened(x), widened(weight), widened(bias), wide, relu);
  copy_values(wide, out);
}

void conv2d_forward_to_sink(const Conv2dGeometry& g, const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Conv2dSink& sink) {
  profile::add_multiply_adds(g.n * g.macs());
  choose(g, x.dtype(), Pass::forward).forward_to_sink(g, x, weight, bias, sink);
}

void conv2d_backward_data_cpu(const Conv2dGeometry& g, const Tensor& grad, const Tensor& weight, const Tensor& x_grad) {
  profile::add_multiply_adds(g.n * g.macs());
  if (!is_half(grad)) return choose(g, grad.dtype(), Pass::backward_data).backward_data(g, grad, weight, x_grad);
  if (by_products(g, grad)) return conv2d_backward_data_bfloat16(g, grad, weight, x_grad);
  const Tensor wide = widened_empty(x_grad);
  choose(g, kFloat32, Pass::backward_data).backward_data(g, widened(grad), widened(weight), wide);
  copy_values(wide, x_grad);
}

void conv2d_backward_weight_cpu(const Conv2dGeometry& g, const Tensor& grad, const Tensor& x, const Tensor& weight_grad,
                                const Tensor& bias_grad) {
  profile::add_multiply_adds(g.n * g.macs());
  if (!is_half(grad))
    return choose(g, grad.dtype(), Pass::backward_weight).backward_weight(g, grad, x, weight_grad, bias_grad);
  if (by_products(g, grad)) return conv2d_backward_weight_bfloat16(g, grad, x, weight_grad, bias_grad);
  const Tensor wide_weight = widened_empty(weight_grad), wide_bias = widened_empty(bias_grad);
  choose(g, kFloat32, Pass::backward_weight).backward_weight(g, widened(grad), widened(x), wide_weight, wide_bias);
  copy_values(wide_weight, weight_grad);
  if (bias_grad.defined()) copy_values(wide_bias, bias_grad);
}

}  // namespace lockstep
