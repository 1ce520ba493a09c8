#include "lockstep/nn/conv.h"

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
  return conv2d(x, weight, bias,
                {.stride = options_.stride,
                 .padding = options_.padding,
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
  return conv1d(x, weight, bias,
                {.stride = options_.stride,
                 .padding = options_.padding,
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
  return conv3d(x, weight, bias,
                {.stride = options_.stride,
                 .padding = options_.padding,
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
