#pragma once

// The unary family as part of Note [Pending values]. For operations (.cpp files) only.

#include <cstdint>
#include <span>

#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/core/computation.h"

namespace lockstep {

/// A function of each element of a pending tensor, of its dtype.
class UnaryComputation final : public Computation {
 public:
  UnaryComputation(UnaryOp op, UnaryParams params, const Tensor& x) : Computation({x}), op_(op), params_(params) {
    const Computation* const before = pending_result_of<Computation>(x);
    if (before && before->takes_sum(x.sizes())) set_takes_sum(x.sizes());
  }

  UnaryOp op() const { return op_; }

 private:
  void compute() override;
  Tensor continue_channels_last(const Tensor& values) override;

  UnaryOp op_;
  UnaryParams params_;
};

/// The gradient of a relu whose input was pending, where gradient and result are laid out (Note [Channels last]).
class ReluGradient final : public Computation {
 public:
  /// Inputs 0 and 1: the gradient and the relu's result, channels last. `behind`: Node::sequence() of the operation
  /// whose result the relu's input was. Not the node, which a gradient that is kept would keep.
  ReluGradient(const Tensor& grad, const Tensor& result, std::uint64_t behind)
      : Computation({grad, result}), behind_(behind) {
    set_follows_laid_out();
  }

  std::uint64_t behind() const { return behind_; }

 private:
  void compute() override;
  Tensor compute_channels_last(std::span<Computation* const> links) override;

  std::uint64_t behind_;
};

/// op(x) of Note [Elementwise chains], left pending; undefined if it is to be computed at the call.
Tensor elementwise_unary(UnaryOp op, UnaryParams params, const Tensor& x, DType dtype);
/// The same for the gradient of op(x), of grad's sizes and dtype. `joins`: what follows is such an operation too;
/// without, it is left pending only if an operand is.
Tensor elementwise_unary_gradient(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved, bool joins);

}  // namespace lockstep
