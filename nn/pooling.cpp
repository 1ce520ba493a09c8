#include "lockstep/nn/pooling.h"

#include "lockstep/autograd/ops/pool2d/pool2d.h"

namespace lockstep::nn {

Tensor MaxPool2d::forward(Tensor x) {
  return max_pool2d(x, kernel_, options_);
}
Tensor MaxUnpool2d::forward(const Tensor& x, const Tensor& indices) {
  return max_unpool2d(x, indices, kernel_, options_);
}
Tensor MaxUnpool2d::forward(const Tensor& x, const Tensor& indices, Size2d output_size) {
  MaxUnpool2dOptions options = options_;
  options.output_size = output_size;
  return max_unpool2d(x, indices, kernel_, options);
}
Tensor Unfold::forward(Tensor x) {
  return unfold(x, kernel_, options_);
}
Tensor Fold::forward(Tensor x) {
  return fold(x, size_, kernel_, options_);
}
Tensor AvgPool2d::forward(Tensor x) {
  return avg_pool2d(x, kernel_, options_);
}
Tensor AdaptiveAvgPool2d::forward(Tensor x) {
  return adaptive_avg_pool2d(x, output_);
}

Tensor AdaptiveMaxPool2d::forward(Tensor x) {
  return adaptive_max_pool2d(x, output_);
}
Tensor MaxPool1d::forward(Tensor x) {
  return max_pool1d(x, kernel_, stride_, padding_);
}
Tensor AvgPool1d::forward(Tensor x) {
  return avg_pool1d(x, kernel_, stride_, padding_);
}
Tensor AdaptiveAvgPool1d::forward(Tensor x) {
  return adaptive_avg_pool1d(x, output_);
}
Tensor Upsample::forward(Tensor x) {
  return interpolate(x, options_);
}
Tensor PixelShuffle::forward(Tensor x) {
  return pixel_shuffle(x, factor_);
}
Tensor Pad2d::forward(Tensor x) {
  return pad(x, padding_, mode_, value_);
}

Tensor MaxPool3d::forward(Tensor x) {
  return max_pool3d(x, kernel_, options_);
}
Tensor AvgPool3d::forward(Tensor x) {
  return avg_pool3d(x, kernel_, options_);
}
Tensor AdaptiveAvgPool3d::forward(Tensor x) {
  return adaptive_avg_pool3d(x, output_);
}
Tensor AdaptiveMaxPool1d::forward(Tensor x) {
  return adaptive_max_pool1d(x, output_);
}
Tensor PixelUnshuffle::forward(Tensor x) {
  return pixel_unshuffle(x, factor_);
}

}  // namespace lockstep::nn
