#pragma once

// The binary family as part of Note [Pending values]. For operations (.cpp files) only.

#include "lockstep/core/computation.h"

namespace lockstep {

/// The sum of a pending tensor and another of its sizes and dtype: x + other, or other + x.
class SumComputation final : public Computation {
 public:
  SumComputation(const Tensor& x, const Tensor& other, bool other_first)
      : Computation({x, other}), other_first_(other_first) {}

  const Tensor& other() const { return input(1); }
  bool other_first() const { return other_first_; }

 private:
  void compute() override;

  bool other_first_;
};

}  // namespace lockstep
