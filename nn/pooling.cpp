#include "lockstep/nn/pooling.h"

#include "lockstep/autograd/ops/adaptive_avg_pool2d/adaptive_avg_pool2d.h"

namespace lockstep::nn {

Tensor MaxPool2d::forward(Tensor x) {
  return max_pool2d(x, kernel_, options_);
}
Tensor AvgPool2d::forward(Tensor x) {
  return avg_pool2d(x, kernel_, options_);
}
Tensor AdaptiveAvgPool2d::forward(Tensor x) {
  return adaptive_avg_pool2d(x, output_);
}

}  // namespace lockstep::nn
