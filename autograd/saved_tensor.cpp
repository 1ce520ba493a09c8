#include "lockstep/autograd/saved_tensor.h"

#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {

SavedTensor::SavedTensor(Tensor tensor)
    : tensor_(std::move(tensor)), version_(tensor_.defined() ? tensor_.storage()->version() : 0) {}

void SavedTensor::throw_changed(const char* node) const {
  detail::throw_error(fmt::format(
      "[{}] a tensor of shape {} that backward needs was changed in place after it was saved (version {}, now {}); "
      "change a clone() instead, or change it after backward()",
      node, to_string(tensor_.sizes()), version_, tensor_.storage()->version()));
}

}  // namespace lockstep
