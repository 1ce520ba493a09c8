#include "lockstep/autograd/ops/layer_norm/layer_norm.h"

#include <cmath>
#include <limits>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/layer_norm/layer_norm_kernels.h"
#include "lockstep/autograd/ops/layer_norm/norm_parameter.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

namespace {

constexpr KernelTable<LayerNormKernel> layer_norm_kernel{"layer_norm", layer_norm_cpu,
                                                         LOCKSTEP_CUDA_KERNEL(layer_norm_cuda)};
constexpr KernelTable<LayerNormBackwardKernel> layer_norm_backward_kernel{
    "layer_norm backward", layer_norm_backward_cpu, LOCKSTEP_CUDA_KERNEL(layer_norm_backward_cuda)};

class LayerNormBackward final : public Node {
 public:
  const char* name() const override { return centred ? "LayerNormBackward" : "RmsNormBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(3);
    if (!grads[0].defined()) return result;
    const Tensor& x = saved(0);
    const Tensor& factor = saved(1);
    const Tensor& row_moments = saved(2);
    const TensorOptions options = options_of(row_moments);
    Tensor grad_weight, grad_bias;
    if (needs_grad(0)) result[0] = empty_like(x);
    if (needs_grad(1)) grad_weight = empty(normalized_shape, options);
    if (needs_grad(2)) grad_bias = empty(normalized_shape, options);
    if (width > 0)
      layer_norm_backward_kernel(x)(as_contiguous(grads[0]), x, factor, row_moments, result[0], grad_weight, grad_bias,
                                    rows, width, centred);
    if (grad_weight.defined()) result[1] = cast_values(grad_weight, factor.dtype());
    if (grad_bias.defined()) result[2] = cast_values(grad_bias, bias_dtype);
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0).reshape({rows, width}), grad = grads[0].reshape({rows, width}).to(x.dtype());
    const Tensor centre = centred ? x - mean(x, {1}, true) : x;
    const Tensor scale = rsqrt(mean(square(centre), {1}, true) + eps), unit = centre * scale;
    Tensor slope = grad;
    if (saved(1).defined()) slope = grad * saved_input(1, 1).reshape({width}).to(x.dtype());
    TensorList result(3);
    if (needs_grad(0)) {
      Tensor out = slope - unit * mean(slope * unit, {1}, true);
      if (centred) out = out - mean(slope, {1}, true);
      result[0] = (out * scale).reshape(grads[0].sizes());
    }
    if (needs_grad(1)) result[1] = sum(grad * unit, {0}).reshape(normalized_shape).to(saved(1).dtype());
    if (needs_grad(2)) result[2] = sum(grad, {0}).reshape(normalized_shape).to(bias_dtype);
    return result;
  }

  Shape normalized_shape;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  double eps = 0.0;
  bool centred = true;
  DType bias_dtype = kFloat32;
};

/// Both operations; `centred`: the mean is taken away first.
Tensor normalize(const Tensor& input, const Shape& normalized_shape, const LayerNormOptions& options, bool centred) {
  const char* const op = centred ? "layer_norm" : "rms_norm";
  LOCKSTEP_CHECK(input.defined(), "[{}] input is undefined", op);
  LOCKSTEP_CHECK(input.is_floating_point(), "[{}] expected a floating-point input, found {}", op, name(input.dtype()));
  LOCKSTEP_CHECK(!std::isnan(options.eps), "[{}] eps is not a number", op);
  const int leading = input.dim() - normalized_shape.dim();
  bool fits = !normalized_shape.empty() && leading >= 0;
  std::int64_t rows = 1;
  for (int d = 0; fits && d < input.dim(); ++d) {
    if (d < leading) {
      rows *= input.sizes()[d];
    } else {
      fits = input.sizes()[d] == normalized_shape[d - leading];
    }
  }
  LOCKSTEP_CHECK(fits, "[{}] expected an input whose shape ends in normalized_shape {}, found {}", op,
                 to_string(normalized_shape), to_string(input.sizes()));
  check_norm_parameter(options.weight, input, normalized_shape, "weight", op);
  check_norm_parameter(options.bias, input, normalized_shape, "bias", op);

  const std::int64_t width = normalized_shape.numel();
  const Tensor x = as_contiguous(input);
  const Tensor weight = options.weight.defined() ? as_contiguous(options.weight) : options.weight;
  const Tensor bias = options.bias.defined() ? as_contiguous(options.bias) : options.bias;
  const Tensor output = empty(input.sizes(), options_of(input));
  const Tensor moments =
      empty({rows, 3}, {.dtype = input.dtype() == kFloat64 ? kFloat64 : kFloat32, .device = input.device()});
  if (width > 0) layer_norm_kernel(x)(x, weight, bias, output, moments, rows, width, options.eps, centred);
  if (auto* node = record<LayerNormBackward>(output, {&input, &options.weight, &options.bias})) {
    node->save(x, weight, moments);
    node->normalized_shape = normalized_shape;
    node->rows = rows;
    node->width = width;
    node->eps = options.eps;
    node->centred = centred;
    if (bias.defined()) node->bias_dtype = bias.dtype();
  }
  return output;
}

}  // namespace

Tensor layer_norm(const Tensor& input, const Shape& normalized_shape, const LayerNormOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& x) { return layer_norm(x, normalized_shape, options); }, input);
  return normalize(input, normalized_shape, options, true);
}

Tensor rms_norm(const Tensor& input, const Shape& normalized_shape, const Tensor& weight, std::optional<double> eps) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& x) { return rms_norm(x, normalized_shape, weight, eps); }, input);
  constexpr double kSingle = std::numeric_limits<float>::epsilon(), kDouble = std::numeric_limits<double>::epsilon();
  const bool is_double = input.defined() && input.dtype() == kFloat64;
  return normalize(input, normalized_shape, {.weight = weight, .eps = eps.value_or(is_double ? kDouble : kSingle)},
                   false);
}

}  // namespace lockstep
