#include "lockstep/autograd/saved_tensor.h"

#include "lockstep/core/check.h"

namespace lockstep {

SavedTensor::SavedTensor(const Tensor& input)
    : tensor_(input), version_(input.defined() ? input.storage()->version() : 0) {}

SavedTensor SavedTensor::output(const Tensor& output) {
  return SavedTensor(output.defined() ? output.detach() : Tensor());
}

const Tensor& SavedTensor::get(const char* node) const {
  if (tensor_.defined() && tensor_.storage()->version() != version_) [[unlikely]] {
    detail::throw_error(fmt::format(
        "[{}] a tensor of shape {} that backward needs was changed in place after it was saved (version {}, now {}); "
        "change a clone() instead, or change it after backward()",
        node, to_string(tensor_.sizes()), version_, tensor_.storage()->version()));
  }
  return tensor_;
}

}  // namespace lockstep
