#include "lockstep/nn/activation.h"

#include <algorithm>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/softmax/softmax.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

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
Tensor Softsign::forward(Tensor x) {
  return softsign(x);
}
Tensor Hardswish::forward(Tensor x) {
  return hardswish(x);
}
Tensor Hardsigmoid::forward(Tensor x) {
  return hardsigmoid(x);
}
Tensor Mish::forward(Tensor x) {
  return mish(x);
}
Tensor LogSigmoid::forward(Tensor x) {
  return logsigmoid(x);
}
Tensor ReLU6::forward(Tensor x) {
  return relu6(x);
}
Tensor SELU::forward(Tensor x) {
  return selu(x);
}
Tensor ELU::forward(Tensor x) {
  return elu(x, alpha_);
}
Tensor CELU::forward(Tensor x) {
  return celu(x, alpha_);
}
Tensor Softplus::forward(Tensor x) {
  return softplus(x, beta_, threshold_);
}
Tensor Hardtanh::forward(Tensor x) {
  return hardtanh(x, min_, max_);
}
Tensor Softmin::forward(Tensor x) {
  return softmin(x, dim_);
}
Tensor LogSoftmax::forward(Tensor x) {
  return log_softmax(x, dim_);
}
Tensor GLU::forward(Tensor x) {
  LOCKSTEP_CHECK(x.size(dim_) % 2 == 0, "[nn::GLU] expected an even size in dimension {}, found {}", dim_,
                 to_string(x.sizes()));
  const std::vector<Tensor> halves = split(x, x.size(dim_) / 2, dim_);
  return halves[0] * sigmoid(halves[1]);
}

PReLU::PReLU(std::int64_t channels, double start) : PReLU(nullptr, {}, channels, start) {}
PReLU::PReLU(Module* parent, std::string_view name, std::int64_t channels, double start)
    : Module(parent, name), weight(this, "weight", full({channels}, start)) {}
Tensor PReLU::forward(Tensor x) {
  if (weight.numel() == 1) return where(x > 0.0, x, weight * x);
  LOCKSTEP_CHECK(x.dim() >= 2 && x.size(1) == weight.numel(), "[nn::PReLU] expected {} channels, found x of sizes {}",
                 weight.numel(), to_string(x.sizes()));
  Shape sizes = Shape::filled(x.dim() - 1, 1);
  sizes[0] = weight.numel();
  return where(x > 0.0, x, weight.view(sizes) * x);
}
Tensor Unflatten::forward(Tensor x) {
  return unflatten(x, dim_, sizes_);
}
Tensor Identity::forward(Tensor x) {
  return x;
}

Tensor Threshold::forward(Tensor x) {
  return threshold(x, threshold_, value_);
}
Tensor Tanhshrink::forward(Tensor x) {
  return tanhshrink(x);
}
Tensor Softshrink::forward(Tensor x) {
  return softshrink(x, lambd_);
}
Tensor Hardshrink::forward(Tensor x) {
  return hardshrink(x, lambd_);
}

}  // namespace lockstep::nn

namespace lockstep {

InterpolateFuncOptions& InterpolateFuncOptions::size(const std::vector<std::int64_t>& value) {
  LOCKSTEP_CHECK(!value.empty() && value.size() <= 3,
                 "[InterpolateFuncOptions] expected a size of one to three dimensions, found {}", value.size());
  if (value.size() == 3)
    value_.volume_size = {value[0], value[1], value[2]};
  else
    value_.size = value.size() == 1 ? Size2d(value[0]) : Size2d(value[0], value[1]);
  return *this;
}

InterpolateFuncOptions& InterpolateFuncOptions::scale_factor(const std::vector<double>& value) {
  LOCKSTEP_CHECK(!value.empty() && value.size() <= 3 &&
                     std::count(value.begin(), value.end(), value[0]) == static_cast<std::ptrdiff_t>(value.size()),
                 "[InterpolateFuncOptions] expected one factor, or equal ones; give size() for others");
  value_.scale_factor = value.front();
  return *this;
}

}  // namespace lockstep
