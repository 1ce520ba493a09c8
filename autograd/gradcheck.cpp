#include "lockstep/autograd/gradcheck.h"

#include <algorithm>
#include <cmath>

#include "lockstep/autograd/engine.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/philox.h"

namespace lockstep {
namespace {

// Weights of the outputs: different for each, none near zero.
Tensor output_weights(const Tensor& output) {
  Tensor weights = empty(output.sizes(), {.dtype = kFloat64});
  double* data = weights.data<double>();
  for (std::int64_t i = 0; i < weights.numel(); ++i)
    data[i] = 0.5 + philox::to_uniform(philox::word_at({0x9e37u, 0x79b9u}, static_cast<std::uint64_t>(i)));
  return weights;
}

double weighted_sum(const Tensor& output) {
  const std::vector<double> values = output.to_vector<double>();
  const std::vector<double> weights = output_weights(output).to_vector<double>();
  double sum = 0.0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

double* element(const Tensor& tensor, std::int64_t linear) {
  std::int64_t offset = 0;
  for (int d = tensor.dim() - 1; d >= 0; --d) {
    offset += linear % tensor.sizes()[d] * tensor.strides()[d];
    linear /= tensor.sizes()[d];
  }
  return tensor.data<double>() + offset;
}

}  // namespace

void gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function, const std::vector<Tensor>& inputs,
               GradcheckOptions options) {
  std::vector<Tensor> saved_grads;
  bool any = false;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    saved_grads.push_back(inputs[i].grad());
    if (!inputs[i].requires_grad()) continue;
    any = true;
    LOCKSTEP_CHECK(inputs[i].dtype() == kFloat64 && inputs[i].is_leaf() && inputs[i].device().is_cpu(),
                   "[gradcheck] input {} must be a float64 leaf on the CPU; it is {} on {}", i, name(inputs[i].dtype()),
                   to_string(inputs[i].device()));
    inputs[i].set_grad({});
  }
  LOCKSTEP_CHECK(any, "[gradcheck] no input requires gradients");

  const Tensor output = function(inputs);
  LOCKSTEP_CHECK(output.dtype() == kFloat64, "[gradcheck] the function must return float64, not {}",
                 name(output.dtype()));
  const Tensor seed = output_weights(output);
  Engine::backward({&output, 1}, {&seed, 1});

  std::vector<std::vector<double>> analytic(inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    const Tensor grad = inputs[i].grad();
    analytic[i] = grad.defined() ? grad.to_vector<double>()
                                 : std::vector<double>(static_cast<std::size_t>(inputs[i].numel()), 0.0);
    inputs[i].set_grad(saved_grads[i]);
  }

  NoGradGuard no_grad;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].requires_grad()) continue;
    for (std::int64_t j = 0; j < inputs[i].numel(); ++j) {
      double* value = element(inputs[i], j);
      const double original = *value;
      *value = original + options.eps;
      const double plus = weighted_sum(function(inputs));
      *value = original - options.eps;
      const double minus = weighted_sum(function(inputs));
      *value = original;
      const double numeric = (plus - minus) / (2.0 * options.eps);
      const double found = analytic[i][static_cast<std::size_t>(j)];
      LOCKSTEP_CHECK(
          std::isfinite(numeric) && std::abs(numeric - found) <= options.atol + options.rtol * std::abs(numeric),
          "[gradcheck] input {}, element {}: backward gives {}, central differences give {}", i, j, found, numeric);
    }
  }
}

}  // namespace lockstep
