// Convolutions of volumes, layer by layer.

#include <algorithm>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/rearrange/rearrange.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
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

/// [n, c, d, h, w] as images [n d, c, h, w].
Tensor as_images(const Tensor& x) {
  return x.transpose(1, 2).reshape({x.size(0) * x.size(2), x.size(1), x.size(3), x.size(4)});
}
/// And back.
Tensor as_volumes(const Tensor& images, std::int64_t n, std::int64_t depth) {
  return images.view({n, depth, images.size(1), images.size(2), images.size(3)}).transpose(1, 2);
}

Tensor with_bias(const Tensor& y, const Tensor& bias) {
  return bias.defined() ? y + bias.view({bias.numel(), 1, 1, 1}) : y.contiguous();
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
  const std::int64_t n = x.size(0), taps = weight.size(2), reach = dilation.d * (taps - 1) + 1;
  const Tensor wide = padding.d > 0 ? pad(x, {0, 0, 0, 0, padding.d, padding.d}) : x;
  LOCKSTEP_CHECK(taps >= 1 && wide.size(2) >= reach, "[conv3d] a kernel of depth {} does not fit into x of sizes {}",
                 reach, to_string(x.sizes()));
  const std::int64_t depth = (wide.size(2) - reach) / stride.d + 1;
  const Conv2dOptions layer{.stride = {stride.h, stride.w},
                            .padding = {padding.h, padding.w},
                            .dilation = {dilation.h, dilation.w},
                            .groups = groups};
  Tensor sum;
  for (std::int64_t k = 0; k < taps; ++k) {
    const std::int64_t first = k * dilation.d;
    const Tensor layers = wide.slice(2, first, first + (depth - 1) * stride.d + 1, stride.d);
    const Tensor part = conv2d(as_images(layers), weight.select(2, k), {}, layer);
    sum = sum.defined() ? sum + part : part;
  }
  return with_bias(as_volumes(sum, n, depth), bias);
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
  const std::int64_t n = x.size(0), in = x.size(2), taps = weight.size(2);
  const std::int64_t depth = (in - 1) * stride.d - 2 * padding.d + dilation.d * (taps - 1) + more.d + 1;
  LOCKSTEP_CHECK(in >= 1 && taps >= 1 && depth >= 1, "[conv_transpose3d] x of {} and a weight of {} give a depth of {}",
                 to_string(x.sizes()), to_string(weight.sizes()), depth);
  const ConvTranspose2dOptions layer{.stride = {stride.h, stride.w},
                                     .padding = {padding.h, padding.w},
                                     .output_padding = {more.h, more.w},
                                     .groups = groups,
                                     .dilation = {dilation.h, dilation.w}};
  const Tensor images = as_images(x);
  Tensor sum;
  for (std::int64_t k = 0; k < taps; ++k) {
    // Layer i of x goes to layer i * stride + k * dilation - padding; what is outside of the result is left out.
    const Tensor part = as_volumes(conv_transpose2d(images, weight.select(2, k), {}, layer), n, in);
    std::vector<std::int64_t> from, to;
    for (std::int64_t i = 0; i < in; ++i) {
      const std::int64_t at = i * stride.d + k * dilation.d - padding.d;
      if (at < 0 || at >= depth) continue;
      from.push_back(i);
      to.push_back(at);
    }
    Shape sizes = part.sizes();
    sizes[2] = depth;
    if (!sum.defined()) sum = zeros(sizes, options_of(part));
    if (!from.empty())
      sum = index_add(sum, 2, tensor(to).to(x.device()), part.index_select(2, tensor(from).to(x.device())));
  }
  return with_bias(sum, bias);
}

}  // namespace lockstep
