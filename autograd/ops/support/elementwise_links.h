#pragma once

// Elementwise operations on a result that another kernel has just written, while it is in the cache. For operations'
// .cpp files only.

#include <cstdint>
#include <span>

#include "lockstep/core/computation.h"

namespace lockstep {

/// The links of a chain (Note [Pending values]) that are functions of each element of a contiguous float32 result on
/// the CPU: a relu, a sum with another tensor. Applied one after the other, they give the bits of their own kernels.
class ElementwiseLinks {
 public:
  /// False if there is another operation among the links.
  bool add(std::span<Computation* const> links);
  /// In place, on `count` values that begin with element number `first` of the result.
  void apply(float* values, std::int64_t first, std::int64_t count) const;

 private:
  struct Link {
    const float* other;  ///< to be added; null: a relu
    bool other_first;    ///< other + value, whose NaN may differ from that of value + other
  };
  SmallVector<Link, 4> links_;
};

}  // namespace lockstep
