// Expressions of elementwise operations and reductions in natural code, forward and backward, with no product that
// would hide them. bench/run_expressions.py starts it, beside the same in PyTorch (torch_expressions.py).

#include <lockstep/lockstep.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench/train_rounds.h"

namespace {

using namespace lockstep;

/// A scalar of some tensors, of which those that require gradients get them.
struct Expression {
  std::vector<Tensor> tensors;
  std::function<Tensor(const std::vector<Tensor>&)> value;
};

Tensor leaf(const Shape& sizes) {
  const Tensor x = randn(sizes);
  x.set_requires_grad(true);
  return x;
}

Tensor gelu_by_hand(const Tensor& x) {
  return 0.5 * x * (1.0 + tanh(0.7978845608 * (x + 0.044715 * x * x * x)));
}

Expression make_expression(const std::string& name) {
  using Tensors = const std::vector<Tensor>&;
  if (name == "gelu") return {{leaf({2048, 768})}, [](Tensors t) { return sum(gelu_by_hand(t[0])); }};
  if (name == "gelu_forward") return {{randn({2048, 768})}, [](Tensors t) { return sum(gelu_by_hand(t[0])); }};
  if (name == "swiglu")
    return {{leaf({2048, 1024}), leaf({2048, 1024})}, [](Tensors t) { return sum(silu(t[0]) * t[1]); }};
  if (name == "rms_norm")
    return {{leaf({2048, 768}), leaf({768})},
            [](Tensors t) { return sum(t[0] * rsqrt(mean(t[0] * t[0], {-1}, true) + 1e-6) * t[1]); }};
  if (name == "layer_norm")
    return {{leaf({2048, 768}), leaf({768}), leaf({768})}, [](Tensors t) {
              const Tensor centred = t[0] - mean(t[0], {-1}, true);
              return sum(centred / sqrt(mean(centred * centred, {-1}, true) + 1e-5) * t[1] + t[2]);
            }};
  if (name == "batch_norm_relu")
    return {{leaf({1024, 1024})}, [](Tensors t) {
              const Tensor centred = t[0] - mean(t[0], {0}, true);
              return sum(relu(centred / sqrt(mean(centred * centred, {0}, true) + 1e-5)));
            }};
  if (name == "rope")
    return {{leaf({64, 256, 64}), randn({256, 32}), randn({256, 32})}, [](Tensors t) {
              const Tensor a = t[0].narrow(2, 0, 32), b = t[0].narrow(2, 32, 32);
              return sum(square(cat({a * t[1] - b * t[2], a * t[2] + b * t[1]}, 2)));
            }};
  if (name == "softmax")
    return {{leaf({512, 2000})}, [](Tensors t) {
              const Tensor powers = exp(t[0] - amax(t[0], {1}, true));
              return sum(square(powers / sum(powers, {1}, true)));
            }};
  if (name == "masked_softmax")
    return {{leaf({16, 256, 256}), (1.0 - tril(ones({256, 256}))) * -1e9},
            [](Tensors t) { return sum(square(softmax(t[0] / 8.0 + t[1], -1))); }};
  if (name == "focal_loss")
    return {{leaf({1000000}), (rand({1000000}) > 0.5).to(kFloat32)}, [](Tensors t) {
              const Tensor p = sigmoid(t[0]), &y = t[1];
              const Tensor loss = -(y * log(p + 1e-6) + (1.0 - y) * log(1.0 - p + 1e-6));
              return mean(pow(1.0 - (y * p + (1.0 - y) * (1.0 - p)), 2.0) * loss);
            }};
  if (name == "variational")
    return {{leaf({4096, 256}), leaf({4096, 256}), randn({4096, 256})}, [](Tensors t) {
              const Tensor z = t[0] + exp(0.5 * t[1]) * t[2];
              return sum(z * z) - 0.5 * sum(1.0 + t[1] - t[0] * t[0] - exp(t[1]));
            }};
  if (name == "huber")
    return {{leaf({2000000}), randn({2000000})}, [](Tensors t) {
              const Tensor distance = abs(t[0] - t[1]);
              return mean(where(distance < 1.0, 0.5 * distance * distance, distance - 0.5));
            }};
  if (name == "charbonnier")
    return {{leaf({8, 64, 64, 64}), randn({8, 64, 64, 64})}, [](Tensors t) {
              const Tensor difference = t[0] - t[1];
              return mean(sqrt(difference * difference + 1e-6));
            }};
  throw std::invalid_argument("no expression is called " + name);
}

class Step {
 public:
  explicit Step(const std::string& name) : expression_(make_expression(name)) {}

  double operator()() {
    for (const Tensor& each : expression_.tensors)
      if (each.requires_grad()) each.set_grad({});
    const Tensor value = expression_.value(expression_.tensors);
    if (value.requires_grad()) value.backward();
    return value.item();
  }

 private:
  Expression expression_;
};

}  // namespace

int main(int argc, char** argv) {
  return train_rounds::run(argc, argv, "lockstep", [](const train_rounds::Setup& setup) {
    set_num_threads(setup.threads);
    manual_seed(1);
    return Step(setup.model);
  });
}
