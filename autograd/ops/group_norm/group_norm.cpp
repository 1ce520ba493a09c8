#include "lockstep/autograd/ops/group_norm/group_norm.h"

#include <cmath>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/group_norm/group_norm_kernels.h"
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

// Other devices, and the reference, make it of other operations.
constexpr KernelTable<GroupNormKernel> group_norm_kernel{"group_norm", group_norm_cpu};
constexpr KernelTable<GroupNormBackwardKernel> group_norm_backward_kernel{"group_norm backward",
                                                                          group_norm_backward_cpu};

/// A shape for the channels' parameters beside an input [N, C, ...].
Shape along_channels(const Shape& input) {
  Shape shape = Shape::filled(input.dim() - 1, 1);
  shape[0] = input[1];
  return shape;
}

Tensor composed(const Tensor& input, const GroupNormSizes& sizes, const LayerNormOptions& options) {
  const std::int64_t width = sizes.width();
  Tensor out = layer_norm(input.reshape({sizes.rows(), width}), {width}, {.eps = options.eps}).view(input.sizes());
  if (options.weight.defined()) out = out * options.weight.view(along_channels(input.sizes()));
  if (options.bias.defined()) out = out + options.bias.view(along_channels(input.sizes()));
  return out.to(input.dtype());
}

class GroupNormBackward final : public Node {
 public:
  const char* name() const override { return "GroupNormBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(3);
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &factor = saved(1), &row_moments = saved(2);
    const Shape channels = {sizes.groups * sizes.channels};
    Tensor grad_weight, grad_bias;
    if (needs_grad(0)) result[0] = empty_like(x);
    if (needs_grad(1)) grad_weight = empty(channels, options_of(row_moments));
    if (needs_grad(2)) grad_bias = empty(channels, options_of(row_moments));
    group_norm_backward_kernel(x)(as_contiguous(grads[0]), x, factor, row_moments, result[0], grad_weight, grad_bias,
                                  sizes);
    if (grad_weight.defined()) result[1] = cast_values(grad_weight, factor.dtype());
    if (grad_bias.defined()) result[2] = cast_values(grad_bias, bias_dtype);
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const Shape parts = {sizes.samples, sizes.groups, sizes.channels, sizes.positions};
    const Tensor x = saved_input(0, 0).reshape(parts), grad = grads[0].reshape(parts).to(x.dtype());
    const Tensor centre = x - mean(x, {2, 3}, true);
    const Tensor scale = rsqrt(mean(square(centre), {2, 3}, true) + eps), unit = centre * scale;
    Tensor slope = grad;
    if (saved(1).defined())
      slope = grad * saved_input(1, 1).reshape({1, sizes.groups, sizes.channels, 1}).to(x.dtype());
    const Shape channels = {sizes.groups * sizes.channels};
    TensorList result(3);
    if (needs_grad(0))
      result[0] = ((slope - mean(slope, {2, 3}, true) - unit * mean(slope * unit, {2, 3}, true)) * scale)
                      .reshape(grads[0].sizes());
    if (needs_grad(1)) result[1] = sum(grad * unit, {0, 3}).reshape(channels).to(saved(1).dtype());
    if (needs_grad(2)) result[2] = sum(grad, {0, 3}).reshape(channels).to(bias_dtype);
    return result;
  }

  GroupNormSizes sizes{};
  double eps = 0.0;
  DType bias_dtype = kFloat32;
};

}  // namespace

Tensor group_norm(const Tensor& input, std::int64_t groups, const LayerNormOptions& options) {
  LOCKSTEP_CHECK(input.defined() && input.dim() >= 2, "[group_norm] expected an input [N, C, ...], found {}",
                 input.defined() ? to_string(input.sizes()) : "an undefined one");
  LOCKSTEP_CHECK(input.is_floating_point(), "[group_norm] expected a floating-point input, found {}",
                 name(input.dtype()));
  LOCKSTEP_CHECK(!std::isnan(options.eps), "[group_norm] eps is not a number");
  const std::int64_t channels = input.size(1);
  LOCKSTEP_CHECK(groups > 0 && channels % groups == 0,
                 "[group_norm] expected a number of groups that divides the {} channels, found {}", channels, groups);
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& x) { return group_norm(x, groups, options); }, input);
  check_norm_parameter(options.weight, input, {channels}, "weight", "group_norm");
  check_norm_parameter(options.bias, input, {channels}, "bias", "group_norm");
  GroupNormSizes sizes{input.size(0), groups, channels / groups, 1};
  for (int d = 2; d < input.dim(); ++d) sizes.positions *= input.sizes()[d];
  LOCKSTEP_CHECK(sizes.width() > 0, "[group_norm] expected a group to have elements, found an input of shape {}",
                 to_string(input.sizes()));
  if (input.device().type != DeviceType::cpu || reference_kernels()) return composed(input, sizes, options);
  const Tensor x = as_contiguous(input);
  const Tensor weight = options.weight.defined() ? as_contiguous(options.weight) : options.weight;
  const Tensor bias = options.bias.defined() ? as_contiguous(options.bias) : options.bias;
  const Tensor output = empty(input.sizes(), options_of(input));
  const Tensor moments =
      empty({sizes.rows(), 3}, {.dtype = input.dtype() == kFloat64 ? kFloat64 : kFloat32, .device = input.device()});
  group_norm_kernel(x)(x, weight, bias, output, moments, sizes, options.eps);
  if (auto* node = record<GroupNormBackward>(output, {&input, &options.weight, &options.bias})) {
    node->save(x, weight, moments);
    node->sizes = sizes;
    node->eps = options.eps;
    if (bias.defined()) node->bias_dtype = bias.dtype();
  }
  return output;
}

Tensor instance_norm(const Tensor& input, const LayerNormOptions& options) {
  LOCKSTEP_CHECK(input.defined() && input.dim() >= 3, "[instance_norm] expected an input [N, C, ...], found {}",
                 input.defined() ? to_string(input.sizes()) : "an undefined tensor");
  return group_norm(input, input.size(1), options);
}

}  // namespace lockstep
