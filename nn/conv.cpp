#include "lockstep/nn/conv.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {
namespace {

void check_groups(std::int64_t in, std::int64_t out, std::int64_t groups, const char* layer) {
  LOCKSTEP_CHECK(groups >= 1 && in % groups == 0 && out % groups == 0,
                 "[nn::{}] expected groups that divide both channel counts, found {} groups for {} -> {}", layer,
                 groups, in, out);
}

Shape weight_shape(std::int64_t in, std::int64_t out, Size2d kernel, std::int64_t groups) {
  check_groups(in, out, groups, "Conv2d");
  return {out, in / groups, kernel.h, kernel.w};
}

Shape weight_shape_1d(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t groups) {
  check_groups(in, out, groups, "Conv1d");
  return {out, in / groups, kernel};
}

Shape transposed_weight_shape(std::int64_t in, std::int64_t out, Size2d kernel, std::int64_t groups) {
  check_groups(in, out, groups, "ConvTranspose2d");
  return {in, out / groups, kernel.h, kernel.w};
}

// x between elements of its own, for a convolution that then pads with nothing. Of each dimension, from the last one:
// the padding (-1 in all: so much that the result has x's sizes), the kernel's size and the distance of its taps.
struct Side {
  std::int64_t padding, kernel, dilation, stride;
};
Tensor padded(const Tensor& x, std::initializer_list<Side> sides, PadMode mode, const char* layer) {
  LOCKSTEP_CHECK(x.dim() == static_cast<int>(sides.size()) + 2, "[nn::{}] expected an input of {} dimensions, found {}",
                 layer, sides.size() + 2, to_string(x.sizes()));
  std::vector<std::int64_t> padding;
  const bool same = std::ranges::all_of(sides, [](const Side& side) { return side.padding == -1; });
  for (const Side& side : sides) {
    LOCKSTEP_CHECK(same || side.padding >= 0, "[nn::{}] expected a padding of at least 0 or kSame, found {}", layer,
                   side.padding);
    LOCKSTEP_CHECK(!same || side.stride == 1, "[nn::{}] padding kSame needs a stride of 1, found {}", layer,
                   side.stride);
    const std::int64_t both = same ? side.dilation * (side.kernel - 1) : 2 * side.padding;
    padding.push_back(both / 2);
    padding.push_back(both - both / 2);
  }
  return pad(x, padding, mode);
}

}  // namespace

Conv2d::Conv2d(std::int64_t in, std::int64_t out, Size2d kernel, Conv2dOptions options)
    : Conv2d(nullptr, {}, in, out, kernel, options) {}

Conv2d::Conv2d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, Size2d kernel,
               Conv2dOptions options)
    : Module(parent, name),
      weight(this, "weight", empty(weight_shape(in, out, kernel, options.groups))),
      bias(this, "bias", options.bias ? empty({out}) : Tensor()),
      options_(options) {
  init::layer_default_(weight, bias);
}

Tensor Conv2d::forward(Tensor x) {
  const Size2d stride = options_.stride, padding = options_.padding, dilation = options_.dilation;
  const bool pads = options_.padding_mode != PadMode::constant;
  if (pads)
    x = padded(x,
               {{padding.w, weight.size(3), dilation.w, stride.w}, {padding.h, weight.size(2), dilation.h, stride.h}},
               options_.padding_mode, "Conv2d");
  return conv2d(x, weight, bias,
                {.stride = options_.stride,
                 .padding = pads ? kValid : options_.padding,
                 .dilation = options_.dilation,
                 .groups = options_.groups});
}

Conv1d::Conv1d(std::int64_t in, std::int64_t out, std::int64_t kernel, Conv1dOptions options)
    : Conv1d(nullptr, {}, in, out, kernel, options) {}

Conv1d::Conv1d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, std::int64_t kernel,
               Conv1dOptions options)
    : Module(parent, name),
      weight(this, "weight", empty(weight_shape_1d(in, out, kernel, options.groups))),
      bias(this, "bias", options.bias ? empty({out}) : Tensor()),
      options_(options) {
  init::layer_default_(weight, bias);
}

Tensor Conv1d::forward(Tensor x) {
  const bool pads = options_.padding_mode != PadMode::constant;
  if (pads)
    x = padded(x, {{options_.padding, weight.size(2), options_.dilation, options_.stride}}, options_.padding_mode,
               "Conv1d");
  return conv1d(x, weight, bias,
                {.stride = options_.stride,
                 .padding = pads ? 0 : options_.padding,
                 .dilation = options_.dilation,
                 .groups = options_.groups});
}

ConvTranspose2d::ConvTranspose2d(std::int64_t in, std::int64_t out, Size2d kernel, ConvTranspose2dOptions options)
    : ConvTranspose2d(nullptr, {}, in, out, kernel, options) {}

ConvTranspose2d::ConvTranspose2d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out,
                                 Size2d kernel, ConvTranspose2dOptions options)
    : Module(parent, name),
      weight(this, "weight", empty(transposed_weight_shape(in, out, kernel, options.groups))),
      bias(this, "bias", options.bias ? empty({out}) : Tensor()),
      options_(options) {
  init::layer_default_(weight, bias);
}

Tensor ConvTranspose2d::forward(Tensor x) {
  return conv_transpose2d(x, weight, bias,
                          {.stride = options_.stride,
                           .padding = options_.padding,
                           .output_padding = options_.output_padding,
                           .groups = options_.groups,
                           .dilation = options_.dilation});
}

ConvTranspose1d::ConvTranspose1d(std::int64_t in, std::int64_t out, std::int64_t kernel, ConvTranspose1dOptions options)
    : ConvTranspose1d(nullptr, {}, in, out, kernel, options) {}

ConvTranspose1d::ConvTranspose1d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out,
                                 std::int64_t kernel, ConvTranspose1dOptions options)
    : Module(parent, name),
      weight(this, "weight",
             empty({in, (check_groups(in, out, options.groups, "ConvTranspose1d"), out / options.groups), kernel})),
      bias(this, "bias", options.bias ? empty({out}) : Tensor()),
      options_(options) {
  init::layer_default_(weight, bias);
}

Tensor ConvTranspose1d::forward(Tensor x) {
  return conv_transpose1d(x, weight, bias,
                          {.stride = options_.stride,
                           .padding = options_.padding,
                           .output_padding = options_.output_padding,
                           .groups = options_.groups,
                           .dilation = options_.dilation});
}

Conv3d::Conv3d(std::int64_t in, std::int64_t out, Size3d kernel, Conv3dOptions options)
    : Conv3d(nullptr, {}, in, out, kernel, options) {}

Conv3d::Conv3d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out, Size3d kernel,
               Conv3dOptions options)
    : Module(parent, name),
      weight(this, "weight",
             empty({(check_groups(in, out, options.groups, "Conv3d"), out), in / options.groups, kernel.d, kernel.h,
                    kernel.w})),
      bias(this, "bias", options.bias ? empty({out}) : Tensor()),
      options_(options) {
  init::layer_default_(weight, bias);
}

Tensor Conv3d::forward(Tensor x) {
  const Size3d stride = options_.stride, padding = options_.padding, dilation = options_.dilation;
  const bool pads = options_.padding_mode != PadMode::constant;
  if (pads)
    x = padded(x,
               {{padding.w, weight.size(4), dilation.w, stride.w},
                {padding.h, weight.size(3), dilation.h, stride.h},
                {padding.d, weight.size(2), dilation.d, stride.d}},
               options_.padding_mode, "Conv3d");
  return conv3d(x, weight, bias,
                {.stride = options_.stride,
                 .padding = pads ? Size3d(0) : options_.padding,
                 .dilation = options_.dilation,
                 .groups = options_.groups});
}

ConvTranspose3d::ConvTranspose3d(std::int64_t in, std::int64_t out, Size3d kernel, ConvTranspose3dOptions options)
    : ConvTranspose3d(nullptr, {}, in, out, kernel, options) {}

ConvTranspose3d::ConvTranspose3d(Module* parent, std::string_view name, std::int64_t in, std::int64_t out,
                                 Size3d kernel, ConvTranspose3dOptions options)
    : Module(parent, name),
      weight(this, "weight",
             empty({in, (check_groups(in, out, options.groups, "ConvTranspose3d"), out / options.groups), kernel.d,
                    kernel.h, kernel.w})),
      bias(this, "bias", options.bias ? empty({out}) : Tensor()),
      options_(options) {
  init::layer_default_(weight, bias);
}

Tensor ConvTranspose3d::forward(Tensor x) {
  return conv_transpose3d(x, weight, bias,
                          {.stride = options_.stride,
                           .padding = options_.padding,
                           .output_padding = options_.output_padding,
                           .groups = options_.groups,
                           .dilation = options_.dilation});
}

}  // namespace lockstep::nn
