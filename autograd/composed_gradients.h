#pragma once

#include <functional>
#include <vector>

#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// The gradients of function(inputs), seeded with `grad`, as recorded functions of the inputs and of `grad`: for
/// Node::apply_recorded() of an operation that recorded operations can say again. Undefined for inputs that need none.
/// For .cpp files only.
TensorList composed_gradients(const std::function<Tensor(const std::vector<Tensor>&)>& function,
                              const std::vector<Tensor>& inputs, const Tensor& grad);

}  // namespace lockstep
