#include <algorithm>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/autograd/ops/conv2d/conv2d_computation.h"
#include "lockstep/autograd/ops/conv2d/conv2d_slope.h"
#include "lockstep/autograd/ops/conv2d/conv_transpose2d_for.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/support/window_numbers.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

/// `geometry` is that of the convolution whose result is x and whose input is the transpose's result.
class ConvTranspose2dBackward final : public Node {
 public:
  const char* name() const override { return "ConvTranspose2dBackward"; }
  bool gradients_are_apart() const override { return true; }
  TensorList apply(TensorList grads) override {
    TensorList result(2);
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &weight = saved(1);
    const Tensor grad = as_contiguous(grads[0]);
    if (needs_grad(0)) {
      result[0] = empty(x.sizes(), options_of(x));
      conv2d_values(geometry, grad, as_contiguous(weight), result[0]);
    }
    if (needs_grad(1)) {
      result[1] = empty(weight.sizes(), options_of(weight));
      conv2d_weight_gradient(geometry, as_contiguous(x), grad, result[1]);
    }
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0), weight = saved_input(1, 1);
    TensorList result(2);
    if (needs_grad(0)) result[0] = conv2d_slope(geometry, Conv2dPart::result, x, grads[0], weight);
    if (needs_grad(1)) result[1] = conv2d_slope(geometry, Conv2dPart::weight, x, grads[0], weight);
    return result;
  }

  Conv2dGeometry geometry{};
};

std::int64_t result_size(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                         std::int64_t output_padding, std::int64_t dilation) {
  return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1;
}

Conv2dGeometry transposed_geometry(const Tensor& x, const Tensor& weight, const ConvTranspose2dOptions& options,
                                   const char* op) {
  const auto& [stride, padding, more, groups, dilation] = options;
  LOCKSTEP_CHECK(x.defined() && weight.defined(), "[{}] x or weight is undefined", op);
  LOCKSTEP_CHECK(x.dim() == 4 && weight.dim() == 4,
                 "[{}] expected x [n, in, height, width] and a weight [in, out / groups, kh, kw], found "
                 "{} and {}",
                 op, to_string(x.sizes()), to_string(weight.sizes()));
  LOCKSTEP_CHECK(x.is_floating_point() && weight.dtype() == x.dtype() && weight.device() == x.device(),
                 "[{}] expected floating-point tensors of one dtype on one device, found {} on {} and {} "
                 "on {}",
                 op, name(x.dtype()), to_string(x.device()), name(weight.dtype()), to_string(weight.device()));
  LOCKSTEP_CHECK(stride.h >= 1 && stride.w >= 1 && dilation.h >= 1 && dilation.w >= 1 && padding.h >= 0 &&
                     padding.w >= 0 && more.h >= 0 && more.w >= 0,
                 "[{}] expected stride and dilation of at least 1 and paddings of at least 0", op);
  LOCKSTEP_CHECK(more.h < std::max(stride.h, dilation.h) && more.w < std::max(stride.w, dilation.w),
                 "[{}] expected an output_padding below the stride or the dilation, found {}x{} and {}x{} "
                 "and {}x{}",
                 op, more.h, more.w, stride.h, stride.w, dilation.h, dilation.w);
  LOCKSTEP_CHECK(groups >= 1 && x.size(1) % groups == 0 && weight.size(0) == x.size(1),
                 "[{}] expected a weight for {} input channels, which {} groups divide, found {}", op, x.size(1),
                 groups, to_string(weight.sizes()));
  check_window_numbers(op, {stride.h, stride.w, padding.h, padding.w, dilation.h, dilation.w, weight.size(2),
                            weight.size(3), x.size(2), x.size(3)});
  Conv2dGeometry g{};
  g.n = x.size(0), g.out = x.size(1), g.oh = x.size(2), g.ow = x.size(3);
  g.in = weight.size(1) * groups, g.kh = weight.size(2), g.kw = weight.size(3);
  g.h = result_size(g.oh, g.kh, stride.h, padding.h, more.h, dilation.h);
  g.w = result_size(g.ow, g.kw, stride.w, padding.w, more.w, dilation.w);
  LOCKSTEP_CHECK(g.kh >= 1 && g.kw >= 1 && g.h >= 1 && g.w >= 1,
                 "[{}] x of {} and a weight of {} give a result of {}x{}", op, to_string(x.sizes()),
                 to_string(weight.sizes()), g.h, g.w);
  g.stride = stride, g.padding = padding, g.dilation = dilation, g.groups = groups;
  return g;
}

}  // namespace

Tensor detail::conv_transpose2d_for(const char* op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                                    const ConvTranspose2dOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return conv_transpose2d_for(op, t..., options); }, x, weight, bias);
  if (x.defined() && x.dim() == 3)  // one image
    return conv_transpose2d_for(op, x.unsqueeze(0), weight, bias, options).squeeze(0);
  const Conv2dGeometry g = transposed_geometry(x, weight, options, op);
  if (bias.defined())
    LOCKSTEP_CHECK(bias.dim() == 1 && bias.size(0) == g.in && bias.dtype() == x.dtype(),
                   "[{}] expected a bias of sizes [{}] and dtype {}, found {} and {}", op, g.in, name(x.dtype()),
                   to_string(bias.sizes()), name(bias.dtype()));
  // Of images of one place, as a generator begins with, it is a product; on every device, so that bits agree.
  const bool one_place = x.size(2) == 1 && x.size(3) == 1 && options.groups == 1 && options.padding.h == 0 &&
                         options.padding.w == 0 && g.h == weight.size(2) && g.w == weight.size(3) && weight.numel() > 0;
  if (one_place) {
    const Tensor product = matmul(x.reshape({x.size(0), x.size(1)}), weight.reshape({weight.size(0), -1}));
    const Tensor image = product.view({g.n, g.in, g.h, g.w});
    return bias.defined() ? image + bias.view({g.in, 1, 1}) : image;
  }
  const Tensor out = empty({g.n, g.in, g.h, g.w}, options_of(x));
  if (out.numel() > 0) conv2d_data_gradient(g, as_contiguous(x), as_contiguous(weight), out);
  if (auto* node = record<ConvTranspose2dBackward>(out, {&x, &weight})) {
    node->geometry = g;
    node->save(x, weight);
  }
  return bias.defined() ? out + bias.view({g.in, 1, 1}) : out;
}

Tensor conv_transpose2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose2dOptions& options) {
  return detail::conv_transpose2d_for("conv_transpose2d", x, weight, bias, options);
}

Tensor conv1d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv1dOptions& options) {
  LOCKSTEP_CHECK(x.defined() && weight.defined() && (x.dim() == 2 || x.dim() == 3) && weight.dim() == 3,
                 "[conv1d] expected x [n, in, length] or [in, length] and a weight [out, in / groups, k], found {} and "
                 "{}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor",
                 weight.defined() ? to_string(weight.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(options.groups >= 1 && x.size(-2) == weight.size(1) * options.groups,
                 "[conv1d] expected x of {} channels for a weight of {} and {} groups, found x of {}",
                 weight.size(1) * options.groups, to_string(weight.sizes()), options.groups, to_string(x.sizes()));
  check_window_numbers("conv1d", {options.stride, options.padding, options.dilation, weight.size(2)});
  const std::int64_t reach = options.dilation * (weight.size(2) - 1) + 1, beside = 2 * options.padding;
  LOCKSTEP_CHECK(options.padding < 0 || reach <= x.size(-1) + beside,
                 "[conv1d] a kernel that reaches over {} steps does not fit into the {} of x {} with {} of padding",
                 reach, x.size(-1), to_string(x.sizes()), beside);
  const Size2d padding = options.padding == -1 ? kSame : Size2d(0, options.padding);
  const int d = x.dim() - 1;
  return conv2d(x.unsqueeze(d), weight.unsqueeze(2), bias,
                {.stride = {1, options.stride},
                 .padding = padding,
                 .dilation = {1, options.dilation},
                 .groups = options.groups})
      .squeeze(d);
}

Tensor conv_transpose1d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose1dOptions& options) {
  LOCKSTEP_CHECK(x.defined() && weight.defined() && (x.dim() == 2 || x.dim() == 3) && weight.dim() == 3,
                 "[conv_transpose1d] expected x [n, in, length] or [in, length] and a weight [in, out / groups, k], "
                 "found {} and {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor",
                 weight.defined() ? to_string(weight.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(x.size(-2) == weight.size(0),
                 "[conv_transpose1d] expected x of {} channels for a weight of {}, found x of {}", weight.size(0),
                 to_string(weight.sizes()), to_string(x.sizes()));
  const int d = x.dim() - 1;
  return detail::conv_transpose2d_for("conv_transpose1d", x.unsqueeze(d), weight.unsqueeze(2), bias,
                                      {.stride = {1, options.stride},
                                       .padding = {0, options.padding},
                                       .output_padding = {0, options.output_padding},
                                       .groups = options.groups,
                                       .dilation = {1, options.dilation}})
      .squeeze(d);
}

}  // namespace lockstep
