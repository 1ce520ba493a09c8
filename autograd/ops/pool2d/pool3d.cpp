// Pools of volumes: over each layer's windows, then over the layers.

#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

void check_volumes(const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 4 || x.dim() == 5),
                 "[{}] expected x [n, c, depth, height, width] or [c, depth, height, width], found {}", op,
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
}

Size3d or_kernel(Size3d stride, Size3d kernel) {
  return stride == Size3d(0) ? kernel : stride;
}

/// `layer` of each layer as an image, then `across` of the layers, which are the rows of images.
template <typename Layer, typename Across>
Tensor pooled(const Tensor& x, Layer&& layer, Across&& across) {
  const int d = x.dim() - 3;
  const std::int64_t planes = d == 0 ? 1 : x.flatten(0, d - 1).size(0), depth = x.size(d);
  const Tensor flat = layer(x.reshape({planes, depth, x.size(-2), x.size(-1)}));
  const std::int64_t h = flat.size(-2), w = flat.size(-1);
  const Tensor out = across(flat.reshape({planes, 1, depth, h * w}));
  Shape sizes = x.sizes();
  sizes[d] = out.size(2);
  sizes[d + 1] = h;
  sizes[d + 2] = w;
  return out.reshape(sizes);
}

}  // namespace

Tensor max_pool3d(const Tensor& x, Size3d kernel, const MaxPool3dOptions& options) {
  check_volumes(x, "max_pool3d");
  const Size3d stride = or_kernel(options.stride, kernel), padding = options.padding, dilation = options.dilation;
  return pooled(
      x,
      [&](const Tensor& images) {
        return max_pool2d(images, {kernel.h, kernel.w},
                          {.stride = {stride.h, stride.w},
                           .padding = {padding.h, padding.w},
                           .dilation = {dilation.h, dilation.w},
                           .ceil_mode = options.ceil_mode});
      },
      [&](const Tensor& layers) {
        return max_pool2d(layers, {kernel.d, 1},
                          {.stride = {stride.d, 1},
                           .padding = {padding.d, 0},
                           .dilation = {dilation.d, 1},
                           .ceil_mode = options.ceil_mode});
      });
}

Tensor avg_pool3d(const Tensor& x, Size3d kernel, const AvgPool3dOptions& options) {
  check_volumes(x, "avg_pool3d");
  const Size3d stride = or_kernel(options.stride, kernel), padding = options.padding;
  return pooled(
      x,
      [&](const Tensor& images) {
        return avg_pool2d(images, {kernel.h, kernel.w},
                          {.stride = {stride.h, stride.w},
                           .padding = {padding.h, padding.w},
                           .ceil_mode = options.ceil_mode,
                           .count_include_pad = options.count_include_pad});
      },
      [&](const Tensor& layers) {
        return avg_pool2d(layers, {kernel.d, 1},
                          {.stride = {stride.d, 1},
                           .padding = {padding.d, 0},
                           .ceil_mode = options.ceil_mode,
                           .count_include_pad = options.count_include_pad});
      });
}

Tensor adaptive_avg_pool3d(const Tensor& x, Size3d output) {
  check_volumes(x, "adaptive_avg_pool3d");
  return pooled(
      x,
      [&](const Tensor& images) {
        return adaptive_avg_pool2d(images, {output.h, output.w});
      },
      [&](const Tensor& layers) {
        return adaptive_avg_pool2d(layers, {output.d, layers.size(3)});
      });
}

}  // namespace lockstep
