#pragma once

// An operation for tests of the engine: multiplies by a factor and tells when its backward runs.

#include <functional>
#include <string>
#include <vector>

#include "lockstep/autograd/record.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"

namespace lockstep::testing {

/// factor * (sum of the inputs), for float64 inputs of one shape; `visit` runs in backward.
class ProbeBackward final : public Node {
 public:
  const char* name() const override { return "ProbeBackward"; }
  TensorList apply(TensorList grads) override {
    if (visit) visit();
    TensorList result(edges().size());
    for (std::size_t i = 0; i < result.size(); ++i) {
      if (!needs_grad(i)) continue;
      result[i] = empty(grads[0].sizes(), options_of(grads[0]));
      const std::vector<double> values = grads[0].to_vector<double>();
      for (std::size_t j = 0; j < values.size(); ++j) result[i].data<double>()[j] = values[j] * factor;
    }
    return result;
  }

  std::function<void()> visit;
  double factor = 1;
};

inline Tensor probe(const std::vector<Tensor>& inputs, double factor = 1, std::function<void()> visit = {},
                    double wrong_factor = 0) {
  Tensor out = zeros(inputs.at(0).sizes(), {.dtype = kFloat64});
  std::vector<const Tensor*> pointers;
  for (const Tensor& input : inputs) {
    pointers.push_back(&input);
    const std::vector<double> values = input.to_vector<double>();
    for (std::size_t j = 0; j < values.size(); ++j) out.data<double>()[j] += values[j] * factor;
  }
  const Tensor* outputs[] = {&out};
  if (auto* node = record_many<ProbeBackward>(outputs, pointers)) {
    node->factor = wrong_factor != 0 ? wrong_factor : factor;
    node->visit = std::move(visit);
  }
  return out;
}

/// The same, appending `label` to `log` in backward.
inline Tensor logged(const std::vector<Tensor>& inputs, std::vector<std::string>& log, std::string label) {
  return probe(inputs, 1, [&log, label] { log.push_back(label); });
}

}  // namespace lockstep::testing
