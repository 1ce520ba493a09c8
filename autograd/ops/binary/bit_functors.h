#pragma once

// Operations on the bits of integers, in the form of binary_functors.h. For kernels (.cpp and .cu) only.

#include <cstdint>

#include "lockstep/core/vector_math.h"

namespace lockstep::binary {

template <typename T>
struct BitAnd {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a & b; }
};

template <typename T>
struct BitOr {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a | b; }
};

template <typename T>
struct BitXor {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a ^ b; }
};

template <typename T>
struct ShiftLeft {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const {
    return b < 0 || b > 63 ? T(0) : static_cast<T>(static_cast<std::uint64_t>(a) << b);
  }
};

/// Bits that come in at the top have the sign's.
template <typename T>
struct ShiftRight {
  T alpha;
  LOCKSTEP_HOST_DEVICE T operator()(T a, T b) const { return a >> (b < 0 || b > 63 ? 63 : b); }
};

}  // namespace lockstep::binary
