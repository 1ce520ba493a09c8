#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// A tensor kept for backward. get() throws Error if its memory was written since it was saved.
class SavedTensor {
 public:
  SavedTensor() = default;
  /// Keeps an input of the operation (undefined is allowed).
  explicit SavedTensor(const Tensor& input);
  /// Keeps an output of the operation, without making the node own itself.
  static SavedTensor output(const Tensor& output);

  /// `node` is named in the error.
  const Tensor& get(const char* node) const;
  bool defined() const { return tensor_.defined(); }  ///< a tensor was saved, and not yet dropped
  void reset() { tensor_ = Tensor(); }

 private:
  Tensor tensor_;
  std::uint32_t version_ = 0;
};

}  // namespace lockstep
