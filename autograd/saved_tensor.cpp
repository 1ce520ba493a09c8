#include "lockstep/autograd/saved_tensor.h"

#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {

SavedTensor::SavedTensor(Tensor tensor)
    : tensor_(std::move(tensor)), version_(tensor_.defined() ? tensor_.storage()->version() : 0) {}

void SavedTensor::forget(const Tensor& changed) {
  if (!tensor_.is_same(changed)) return;
  Tensor left = changed.detach();  // for its shape in the message
  left.impl()->storage = StoragePtr(new Storage(nullptr, 0, changed.device(), {}));
  tensor_ = std::move(left);
  version_ = ~tensor_.storage()->version();
}

void SavedTensor::throw_changed(const char* node) const {
  detail::throw_error(
      fmt::format("[{}] a tensor of shape {} that backward needs was changed in place after it was saved; "
                  "change a clone() instead, or change it after backward()",
                  node, to_string(tensor_.sizes())));
}

}  // namespace lockstep
