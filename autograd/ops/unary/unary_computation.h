#pragma once

// The unary family as part of Note [Pending values]. For operations (.cpp files) only.

#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/core/computation.h"

namespace lockstep {

/// A function of each element of a pending tensor, of its dtype.
class UnaryComputation final : public Computation {
 public:
  UnaryComputation(UnaryOp op, UnaryParams params, const Tensor& x) : Computation({x}), op_(op), params_(params) {}

  UnaryOp op() const { return op_; }

 private:
  void compute() override;

  UnaryOp op_;
  UnaryParams params_;
};

}  // namespace lockstep
