#include "lockstep/nn/conv.h"

#include "lockstep/autograd/ops/conv2d/conv2d.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/nn/init.h"

namespace lockstep::nn {
namespace {

Shape weight_shape(std::int64_t in, std::int64_t out, Size2d kernel, std::int64_t groups) {
  LOCKSTEP_CHECK(groups >= 1 && in % groups == 0 && out % groups == 0,
                 "[nn::Conv2d] expected groups that divide both channel counts, found {} groups for {} -> {}", groups,
                 in, out);
  return {out, in / groups, kernel.h, kernel.w};
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

}  // namespace lockstep::nn
