// Convolutions of volumes, made of those of images.

#include <algorithm>
#include <vector>

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/autograd/ops/conv2d/conv_transpose2d_for.h"
#include "lockstep/autograd/ops/support/window_numbers.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

void check_volumes(const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t out, const char* op) {
  LOCKSTEP_CHECK(x.defined() && weight.defined() && x.dim() == 5 && weight.dim() == 5,
                 "[{}] expected x [n, in, depth, height, width] and a weight of five dimensions, found {} and {}", op,
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor",
                 weight.defined() ? to_string(weight.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(!bias.defined() || (bias.dim() == 1 && bias.size(0) == out),
                 "[{}] expected a bias of sizes [{}], found {}", op, out, to_string(bias.sizes()));
}

/// Which layers of volumes the taps of a kernel meet: tap k of layer i of the result meets layer
/// i * stride + k * dilation - padding of x.
struct LayerPlan {
  std::int64_t taps, stride, padding, dilation, result;

  /// Calls each(tap, first layer of the result, first layer of x, their number) for the taps that meet any of `depth`.
  template <typename Each>
  void for_each_tap(std::int64_t depth, Each&& each) const {
    for (std::int64_t k = 0; k < taps; ++k) {
      const std::int64_t shift = k * dilation - padding;
      const std::int64_t first = shift < 0 ? (-shift + stride - 1) / stride : 0;
      const std::int64_t end = shift < depth ? std::min(result, (depth - shift + stride - 1) / stride) : 0;
      if (first < end) each(k, first, first * stride + shift, end - first);
    }
  }
};

/// `count` layers from `first` on, `step` apart, of volumes [n, c, d, h, w]: [n, count, c, h, w].
Tensor some_layers(const Tensor& x, std::int64_t first, std::int64_t count, std::int64_t step) {
  return x.slice(2, first, first + (count - 1) * step + 1, step).transpose(1, 2);
}
/// Tap k of images [n result, c taps, h, w] for layers of the result: [n, count, c, h, w].
Tensor tap_of(const Tensor& images, const LayerPlan& plan, std::int64_t tap, std::int64_t first, std::int64_t count) {
  const std::int64_t n = images.size(0) / plan.result, c = images.size(1) / plan.taps;
  return images.view({n, plan.result, c, plan.taps, images.size(2), images.size(3)})
      .narrow(1, first, count)
      .select(3, tap);
}

/// x [n, c, d, h, w] as images [n result, c taps, h, w], one for each layer of the result, with the layers that its
/// taps meet as channels; 0 beside x. So a convolution of volumes is one of images, and its weight has their layout.
Tensor gather_layers(const Tensor& x, const LayerPlan& plan) {
  const Tensor images = empty({x.size(0) * plan.result, x.size(1) * plan.taps, x.size(3), x.size(4)}, options_of(x));
  std::int64_t next = 0;
  const auto clear = [&](std::int64_t tap, std::int64_t first, std::int64_t end) {
    if (first < end) fill_values(tap_of(images, plan, tap, first, end - first), 0);
  };
  plan.for_each_tap(x.size(2), [&](std::int64_t k, std::int64_t first, std::int64_t layer, std::int64_t count) {
    for (; next < k; ++next) clear(next, 0, plan.result);
    clear(k, 0, first);
    copy_values(some_layers(x, layer, count, plan.stride), tap_of(images, plan, k, first, count));
    clear(k, first + count, plan.result);
    ++next;
  });
  for (; next < plan.taps; ++next) clear(next, 0, plan.result);
  return images;
}
/// Its transpose: what meets at a layer of the volumes of `depth` layers is added up in the taps' order.
Tensor add_up_layers(const Tensor& given, const LayerPlan& plan, std::int64_t depth) {
  if (element_size(given.dtype()) == 2)  // rounded once
    return add_up_layers(given.detach().to(kFloat32), plan, depth).to(given.dtype());
  const Tensor images = as_contiguous(given);
  const Shape sizes{images.size(0) / plan.result, images.size(1) / plan.taps, depth, images.size(2), images.size(3)};
  const bool copies = plan.stride == 1;  // the first tap's layers, which are neighbours
  const Tensor x = copies ? empty(sizes, options_of(images)) : zeros(sizes, options_of(images));
  bool any = false;
  const auto clear = [&](std::int64_t first, std::int64_t end) {
    if (first < end) fill_values(x.narrow(2, first, end - first), 0);
  };
  plan.for_each_tap(depth, [&](std::int64_t k, std::int64_t first, std::int64_t layer, std::int64_t count) {
    const Tensor to = some_layers(x, layer, count, plan.stride), from = tap_of(images, plan, k, first, count);
    if (copies && !any) {
      clear(0, layer);
      copy_values(from, to);
      clear(layer + count, depth);
    } else {
      add_values_(to, from);
    }
    any = true;
  });
  if (copies && !any) clear(0, depth);
  return x;
}

/// Images [n depth, c, h, w] as volumes.
Tensor as_volumes(const Tensor& images, std::int64_t n, std::int64_t depth) {
  return images.view({n, depth, images.size(1), images.size(2), images.size(3)}).transpose(1, 2).contiguous();
}

/// `count` layers of a result from `first` on, and those of x from `layer` on, which the tap meets for them.
struct TapLayers {
  std::int64_t tap, first, layer, count;
};
std::vector<TapLayers> layers_of_taps(const LayerPlan& plan, std::int64_t depth) {
  std::vector<TapLayers> all;
  plan.for_each_tap(depth, [&](std::int64_t k, std::int64_t first, std::int64_t layer, std::int64_t count) {
    all.push_back({k, first, layer, count});
  });
  return all;
}
/// The sum, in the taps' order, of volumes that have the layers of a result which their taps meet.
class LayerSumBackward final : public Node {
 public:
  std::vector<TapLayers> taps;
  const char* name() const override { return "LayerSumBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList results = apply_recorded(std::move(grads));
    for (Tensor& grad : results)
      if (grad.defined()) grad = copy_contiguous(grad);
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    TensorList results(taps.size());
    for (std::size_t i = 0; i < taps.size(); ++i)
      if (needs_grad(i)) results[i] = grads[0].narrow(2, taps[i].first, taps[i].count);
    return results;
  }
};

/// Of volumes whose channels do not meet: each layer of each channel is an image of its own, and those that a layer of
/// the filters meets are convolved with it.
Tensor depthwise_volumes(const Tensor& x, const Tensor& weight, const Tensor& bias, const LayerPlan& plan,
                         const Conv3dOptions& options) {
  const std::int64_t n = x.size(0), c = x.size(1);
  const std::vector<TapLayers> taps = layers_of_taps(plan, x.size(2));
  std::vector<Tensor> parts;
  for (const TapLayers& at : taps) {
    const Tensor images = x.narrow(2, at.layer, at.count).reshape({n, c * at.count, x.size(3), x.size(4)});
    const Tensor filters = weight.select(2, at.tap)
                               .unsqueeze(1)
                               .expand({c, at.count, 1, weight.size(3), weight.size(4)})
                               .reshape({c * at.count, 1, weight.size(3), weight.size(4)});
    const Tensor part = conv2d(images, filters, {},
                               {.stride = {options.stride.h, options.stride.w},
                                .padding = {options.padding.h, options.padding.w},
                                .dilation = {options.dilation.h, options.dilation.w},
                                .groups = c * at.count});
    parts.push_back(part.view({n, c, at.count, part.size(2), part.size(3)}));
  }
  const Tensor sum = zeros({n, c, plan.result, parts[0].size(3), parts[0].size(4)}, options_of(x));
  std::vector<const Tensor*> inputs;
  for (std::size_t i = 0; i < taps.size(); ++i) {
    add_values_(sum.narrow(2, taps[i].first, taps[i].count), parts[i].detach());
    inputs.push_back(&parts[i]);
  }
  const Tensor* const outputs[] = {&sum};
  if (auto* node = record_many<LayerSumBackward>(outputs, inputs)) node->taps = taps;
  return bias.defined() ? sum + bias.view({bias.numel(), 1, 1, 1}) : sum;
}

}  // namespace

Tensor conv3d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv3dOptions& options) {
  if (x.defined() && x.dim() == 4) return conv3d(x.unsqueeze(0), weight, bias, options).squeeze(0);
  check_volumes(x, weight, bias, weight.defined() && weight.dim() > 0 ? weight.size(0) : 0, "conv3d");
  const auto& [stride, padding, dilation, groups] = options;
  LOCKSTEP_CHECK(stride.d >= 1 && padding.d >= 0 && dilation.d >= 1,
                 "[conv3d] expected stride and dilation of at least 1 and a padding of at least 0");
  LOCKSTEP_CHECK(groups >= 1 && x.size(1) == weight.size(1) * groups,
                 "[conv3d] expected x of {} channels for a weight of {} and {} groups, found x of {}",
                 weight.size(1) * groups, to_string(weight.sizes()), groups, to_string(x.sizes()));
  check_window_numbers("conv3d", {stride.d, stride.h, stride.w, padding.d, padding.h, padding.w, dilation.d, dilation.h,
                                  dilation.w, weight.size(2)});
  const std::int64_t n = x.size(0), taps = weight.size(2), reach = dilation.d * (taps - 1) + 1;
  LOCKSTEP_CHECK(taps >= 1 && x.size(2) + 2 * padding.d >= reach,
                 "[conv3d] a kernel of depth {} does not fit into x of sizes {}", reach, to_string(x.sizes()));
  const std::int64_t depth = (x.size(2) + 2 * padding.d - reach) / stride.d + 1;
  if (weight.size(3) == 1 && weight.size(4) == 1 && stride.h * stride.w == 1 && padding.h == 0 && padding.w == 0) {
    // Along the depth alone: a volume is one image of `depth` rows.
    const Tensor y =
        conv2d(x.reshape({n, x.size(1), x.size(2), x.size(3) * x.size(4)}),
               weight.reshape({weight.size(0), weight.size(1), taps, 1}), bias,
               {.stride = {stride.d, 1}, .padding = {padding.d, 0}, .dilation = {dilation.d, 1}, .groups = groups});
    return y.view({n, weight.size(0), depth, x.size(3), x.size(4)});
  }
  const Conv2dOptions layer{.stride = {stride.h, stride.w},
                            .padding = {padding.h, padding.w},
                            .dilation = {dilation.h, dilation.w},
                            .groups = groups};
  const LayerPlan plan{taps, stride.d, padding.d, dilation.d, depth};
  const bool of_floats = x.dtype() == kFloat32 && weight.dtype() == kFloat32 &&
                         (!bias.defined() || bias.dtype() == kFloat32) && !autocast::is_active;
  const bool depthwise = groups > 1 && groups == x.size(1) && groups == weight.size(0) && stride.d == 1;
  if (x.device().is_cpu() && of_floats && depthwise && !layers_of_taps(plan, x.size(2)).empty())
    return depthwise_volumes(x, weight, bias, plan, options);
  const Tensor images =
      apply_linear(x, {[plan](const Tensor& volumes) { return gather_layers(volumes, plan); },
                       [plan, in = x.size(2)](const Tensor& grad) { return add_up_layers(grad, plan, in); }});
  const Tensor filters = weight.reshape({weight.size(0), weight.size(1) * taps, weight.size(3), weight.size(4)});
  return as_volumes(conv2d(images, filters, bias, layer), n, depth);
}

Tensor conv_transpose3d(const Tensor& x, const Tensor& weight, const Tensor& bias,
                        const ConvTranspose3dOptions& options) {
  if (x.defined() && x.dim() == 4) return conv_transpose3d(x.unsqueeze(0), weight, bias, options).squeeze(0);
  const auto& [stride, padding, more, groups, dilation] = options;
  check_volumes(x, weight, bias, weight.defined() && weight.dim() > 1 ? weight.size(1) * groups : 0,
                "conv_transpose3d");
  LOCKSTEP_CHECK(
      stride.d >= 1 && padding.d >= 0 && dilation.d >= 1 && more.d >= 0 && more.d < std::max(stride.d, dilation.d),
      "[conv_transpose3d] expected stride and dilation of at least 1, paddings of at least 0, and an "
      "output_padding below the stride or the dilation");
  check_window_numbers("conv_transpose3d", {stride.d, stride.h, stride.w, padding.d, padding.h, padding.w, dilation.d,
                                            dilation.h, dilation.w, weight.size(2), x.size(2)});
  const std::int64_t n = x.size(0), in = x.size(2), taps = weight.size(2);
  const std::int64_t depth = (in - 1) * stride.d - 2 * padding.d + dilation.d * (taps - 1) + more.d + 1;
  LOCKSTEP_CHECK(in >= 1 && taps >= 1 && depth >= 1, "[conv_transpose3d] x of {} and a weight of {} give a depth of {}",
                 to_string(x.sizes()), to_string(weight.sizes()), depth);
  const ConvTranspose2dOptions layer{.stride = {stride.h, stride.w},
                                     .padding = {padding.h, padding.w},
                                     .output_padding = {more.h, more.w},
                                     .groups = groups,
                                     .dilation = {dilation.h, dilation.w}};
  // What conv3d() gathers, its transpose adds up.
  const LayerPlan plan{taps, stride.d, padding.d, dilation.d, in};
  const Tensor filters = weight.reshape({weight.size(0), weight.size(1) * taps, weight.size(3), weight.size(4)});
  const Tensor images = x.transpose(1, 2).reshape({n * in, x.size(1), x.size(3), x.size(4)});
  const Tensor sum = apply_linear(detail::conv_transpose2d_for("conv_transpose3d", images, filters, {}, layer),
                                  {[plan, depth](const Tensor& parts) { return add_up_layers(parts, plan, depth); },
                                   [plan](const Tensor& grad) { return gather_layers(grad, plan); }});
  if (!bias.defined()) return sum;
  return sum + (autocast::is_active ? bias.to(sum.dtype()) : bias).view({bias.numel(), 1, 1, 1});
}

}  // namespace lockstep
