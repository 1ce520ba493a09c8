#include "lockstep/autograd/ops/conv2d/conv2d.h"

#include <algorithm>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/conv2d/conv2d_computation.h"
#include "lockstep/autograd/ops/conv2d/conv2d_slope.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/support/window_numbers.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

// Nothing to multiply: the result (if it has elements) is the bias alone.
bool no_products(const Conv2dGeometry& g) {
  return g.n == 0 || g.in == 0 || g.out == 0 || g.h == 0 || g.w == 0;
}

class Conv2dBackward final : public Node {
 public:
  const char* name() const override { return "Conv2dBackward"; }
  bool gradients_are_apart() const override { return true; }

  TensorList apply(TensorList grads) override {
    TensorList result{Tensor(), Tensor(), Tensor()};
    if (!grads[0].defined()) return result;
    const Tensor &x = saved(0), &weight = saved(1), &filters = saved(2);
    if (conv2d_backward_channels_last(geometry_, grads[0], x, filters.defined() ? filters : weight,
                                      {needs_grad(0), needs_grad(1), needs_grad(2)}, result))
      return result;
    if (needs_grad(0)) result[0] = empty(x.sizes(), options_of(x));
    if (needs_grad(1) || needs_grad(2)) result[1] = empty(weight.sizes(), options_of(weight));
    if (needs_grad(2)) result[2] = empty({geometry_.out}, options_of(weight));
    if (no_products(geometry_)) {
      for (const Tensor& each : result)
        if (each.defined()) fill_values(each, 0);
    } else {
      conv2d_backward(geometry_, grads[0], as_contiguous(x), as_contiguous(weight), result[0], result[1], result[2]);
    }
    return result;
  }

  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0), weight = saved_input(1, 1);
    TensorList result(3);
    if (needs_grad(0)) result[0] = conv2d_slope(geometry_, Conv2dPart::x, grads[0], x, weight);
    if (needs_grad(1)) result[1] = conv2d_slope(geometry_, Conv2dPart::weight, grads[0], x, weight);
    if (needs_grad(2)) result[2] = sum(grads[0], {0, 2, 3});
    return result;
  }

  Conv2dGeometry geometry_;
};

void check_operand(const Tensor& x, const Tensor& other, const char* what) {
  LOCKSTEP_CHECK(other.device() == x.device(), "[conv2d] x is on {} but {} on {}; move one of them",
                 to_string(x.device()), what, to_string(other.device()));
  LOCKSTEP_CHECK(other.dtype() == x.dtype(), "[conv2d] x is {} but {} is {}; cast one of them", name(x.dtype()), what,
                 name(other.dtype()));
}

std::int64_t output_size(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                         std::int64_t dilation, const char* side) {
  const std::int64_t reach = dilation * (kernel - 1) + 1;
  LOCKSTEP_CHECK(size + 2 * padding >= reach,
                 "[conv2d] the kernel is larger than the image: {} {} with padding {} is below {} (kernel {}, dilation "
                 "{})",
                 side, size, padding, reach, kernel, dilation);
  return (size + 2 * padding - reach) / stride + 1;
}

}  // namespace

Conv2dGeometry conv2d_geometry(const Tensor& x, const Tensor& weight, const Tensor& bias,
                               const Conv2dOptions& options) {
  LOCKSTEP_CHECK(x.defined() && weight.defined(), "[conv2d] x or weight is undefined");
  LOCKSTEP_CHECK(x.is_floating_point(), "[conv2d] expected a floating-point x, found {}; cast it", name(x.dtype()));
  check_operand(x, weight, "weight");
  LOCKSTEP_CHECK(x.dim() == 4,
                 "[conv2d] expected x of sizes [n, channels, height, width] or [channels, height, width], found {}",
                 to_string(x.sizes()));
  LOCKSTEP_CHECK(weight.dim() == 4, "[conv2d] expected a weight of sizes [out, in / groups, kh, kw], found {}",
                 to_string(weight.sizes()));
  const auto& [stride, padding, dilation, groups] = options;
  LOCKSTEP_CHECK(
      stride.h >= 1 && stride.w >= 1 && dilation.h >= 1 && dilation.w >= 1 && padding.h >= 0 && padding.w >= 0,
      "[conv2d] expected stride and dilation of at least 1 and padding of at least 0, found stride {}x{}, "
      "dilation {}x{}, padding {}x{}",
      stride.h, stride.w, dilation.h, dilation.w, padding.h, padding.w);
  const Shape &xs = x.sizes(), &ws = weight.sizes();
  check_window_numbers("conv2d", {stride.h, stride.w, padding.h, padding.w, dilation.h, dilation.w, ws[2], ws[3]});
  LOCKSTEP_CHECK(groups >= 1 && xs[1] % groups == 0 && ws[0] % groups == 0,
                 "[conv2d] groups must divide the channels: {} groups, {} in, {} out", groups, xs[1], ws[0]);
  LOCKSTEP_CHECK(ws[1] == xs[1] / groups,
                 "[conv2d] expected a weight of {} channels for x of {} and {} group{}, found {}", xs[1] / groups,
                 to_string(xs), groups, groups == 1 ? "" : "s", to_string(ws));
  LOCKSTEP_CHECK(ws[2] >= 1 && ws[3] >= 1, "[conv2d] the kernel is empty: weight {}", to_string(ws));
  if (bias.defined()) {
    check_operand(x, bias, "bias");
    LOCKSTEP_CHECK(bias.dim() == 1 && bias.sizes()[0] == ws[0], "[conv2d] expected a bias of sizes [{}], found {}",
                   ws[0], to_string(bias.sizes()));
  }
  Conv2dGeometry g{};
  g.n = xs[0], g.in = xs[1], g.h = xs[2], g.w = xs[3];
  g.out = ws[0], g.kh = ws[2], g.kw = ws[3];
  g.oh = output_size(g.h, g.kh, stride.h, padding.h, dilation.h, "height");
  g.ow = output_size(g.w, g.kw, stride.w, padding.w, dilation.w, "width");
  g.stride = stride, g.padding = padding, g.dilation = dilation, g.groups = groups;
  // A stride past the image, and the dilation of a single tap, have no part in the result: kernels need not meet them.
  if (g.kh == 1) g.dilation.h = 1;
  if (g.kw == 1) g.dilation.w = 1;
  g.stride.h = std::min(stride.h, g.h + 2 * padding.h - dilation.h * (g.kh - 1));
  g.stride.w = std::min(stride.w, g.w + 2 * padding.w - dilation.w * (g.kw - 1));
  return g;
}

namespace {

// With as many zeros on both sides, and the odd one beside x.
Tensor conv2d_same(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv2dOptions options) {
  LOCKSTEP_CHECK(options.stride == Size2d(1), "[conv2d] padding kSame needs a stride of 1, found {}x{}",
                 options.stride.h, options.stride.w);
  const Size2d zeros{options.dilation.h * (weight.size(2) - 1), options.dilation.w * (weight.size(3) - 1)};
  options.padding = {zeros.h / 2, zeros.w / 2};
  Tensor framed = x;
  for (const int d : {2, 3}) {
    if ((d == 2 ? zeros.h : zeros.w) % 2 == 0) continue;
    Shape sizes = framed.sizes();
    sizes[d] = 1;
    framed = cat({framed, lockstep::zeros(sizes, options_of(x))}, d);
  }
  return conv2d(framed, weight, bias, options);
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& options) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return conv2d(t..., options); }, x, weight, bias);
  if (x.defined() && x.dim() == 3)  // one image
    return conv2d(x.unsqueeze(0), weight, bias, options).squeeze(0);
  if (options.padding == kSame && x.defined() && x.dim() == 4 && weight.defined() && weight.dim() == 4)
    return conv2d_same(x, weight, bias, options);
  const Conv2dGeometry g = conv2d_geometry(x, weight, bias, options);
  Tensor out, laid_out_weight;
  if (!no_products(g)) {
    Conv2dGeometry computed = g;
    Tensor images, filters, shifts = bias.defined() ? as_contiguous(bias) : bias;
    if (x.storage()->is_pending() && conv2d_takes_channels_last(g, x)) images = channels_last_of(x);
    if (images.defined()) {
      computed.channels_last = true;
      filters = to_channels_last(weight);
      laid_out_weight = from_channels_last(filters);
    } else {
      images = as_contiguous(x);
      filters = as_contiguous(weight);
    }
    const bool waits =
        (x.device().is_cuda() || x.dtype() == kFloat32) && may_wait(g.n * g.macs(), {&images, &filters, &shifts});
    out = make_intrusive<Conv2dComputation>(computed, images, filters, shifts)
              ->add_result({g.n, g.out, g.oh, g.ow}, options_of(x));
    if (!waits) out.storage()->settle();
  } else {
    out = empty({g.n, g.out, g.oh, g.ow}, options_of(x));
    if (out.numel() > 0) fill_values(out, 0);
    if (out.numel() > 0 && bias.defined())
      copy_values(bias.as_strided({1, g.out, 1, 1}, {0, bias.strides()[0], 0, 0}, bias.offset()), out);
  }
  if (auto* node = record<Conv2dBackward>(out, {&x, &weight, &bias})) {
    node->geometry_ = g;
    node->save(x, weight, laid_out_weight);
  }
  return out;
}

}  // namespace lockstep
