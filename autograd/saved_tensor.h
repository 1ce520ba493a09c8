#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// A tensor that a Node keeps for backward, with the version its memory had when it was saved. See Node::save().
class SavedTensor {
 public:
  SavedTensor() = default;
  /// Undefined is allowed.
  explicit SavedTensor(Tensor tensor);

  /// Throws Error, naming `node`, if the memory was written since the tensor was saved.
  const Tensor& get(const char* node) const {
    if (tensor_.defined() && tensor_.storage()->version() != version_) [[unlikely]]
      throw_changed(node);
    return tensor_;
  }
  bool defined() const { return tensor_.defined(); }  ///< a tensor was saved
  /// Lets go of `changed`, if that is the tensor, whose memory was written since: get() goes on to throw.
  void forget(const Tensor& changed);

 private:
  [[noreturn]] void throw_changed(const char* node) const;

  Tensor tensor_;
  std::uint32_t version_ = 0;
};

}  // namespace lockstep
