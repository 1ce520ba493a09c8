#pragma once

// What the tests of Note [Pending values] share.

#include <bit>
#include <cstdint>
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

/// Equal to the bit: NaN and the sign of zero count.
inline ::testing::AssertionResult same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " and " << b.size() << " elements";
  for (std::size_t i = 0; i < a.size(); ++i)
    if (std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]))
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " and " << b[i];
  return ::testing::AssertionSuccess();
}

}  // namespace lockstep::testing
