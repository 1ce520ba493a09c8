#pragma once

// What the tests of Note [Pending values] share.

#include <vector>

#include "lockstep/core/computation.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {

/// Without fusion for its lifetime.
class AtTheCall {
 public:
  AtTheCall() { set_fusion(false); }
  ~AtTheCall() { set_fusion(true); }
};

inline bool is_pending(const Tensor& tensor) {
  return tensor.storage()->is_pending();
}

inline std::vector<float> bits(const Tensor& tensor) {
  return tensor.defined() ? tensor.to_vector<float>() : std::vector<float>();
}

}  // namespace lockstep::testing
