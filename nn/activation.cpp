#include "lockstep/nn/activation.h"

#include "lockstep/autograd/ops/softmax/softmax.h"
#include "lockstep/autograd/ops/unary/unary.h"

namespace lockstep::nn {

Tensor ReLU::forward(Tensor x) {
  return relu(x);
}
Tensor LeakyReLU::forward(Tensor x) {
  return leaky_relu(x, negative_slope_);
}
Tensor GELU::forward(Tensor x) {
  return gelu(x);
}
Tensor SiLU::forward(Tensor x) {
  return silu(x);
}
Tensor Tanh::forward(Tensor x) {
  return tanh(x);
}
Tensor Sigmoid::forward(Tensor x) {
  return sigmoid(x);
}
Tensor Softmax::forward(Tensor x) {
  return softmax(x, dim_);
}
Tensor Flatten::forward(Tensor x) {
  return x.flatten(start_dim_, end_dim_);
}
Tensor Identity::forward(Tensor x) {
  return x;
}

}  // namespace lockstep::nn
