#pragma once

#include <functional>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Two values agree if they differ by at most atol + rtol * |numerical value|.
struct GradcheckOptions {
  double eps = 1e-6;   ///< step of the central difference
  double atol = 1e-5;  ///< absolute tolerance
  double rtol = 1e-3;  ///< relative tolerance
};

/// Compares backward() to central differences for every element of every input that requires gradients.
/// `function` maps the inputs to one tensor; its weighted sum with fixed pseudo-random weights is differentiated.
/// Inputs must be float64. Throws Error naming input, element and both values on the first disagreement (and
/// for float32 inputs). The inputs' values and gradients are left as they were.
void gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& function, const std::vector<Tensor>& inputs,
               GradcheckOptions options = {});

}  // namespace lockstep
