#pragma once

// The binary family as part of Note [Pending values]. For operations (.cpp files) only.

#include "lockstep/autograd/ops/binary/binary_kernels.h"
#include "lockstep/core/computation.h"

namespace lockstep {

/// op(a, b) of Note [Elementwise chains], left pending; undefined if it is to be computed at the call. `sizes` and
/// `dtype` are the result's.
Tensor elementwise_binary(BinaryOp op, const Operand& a, const Operand& b, double alpha, const Shape& sizes,
                          DType dtype);
/// The same of a comparison of operands of that compute type, and of a choice, whose `dtype` is the result's.
Tensor elementwise_compare(CompareOp op, const Operand& a, const Operand& b, const Shape& sizes, DType type);
Tensor elementwise_where(const Tensor& condition, const Operand& a, const Operand& b, const Shape& sizes, DType dtype);
/// a + b of gradients; undefined unless they are alike and one of them is pending in this way.
Tensor elementwise_sum(const Tensor& a, const Tensor& b);

/// The sum of a pending tensor and another of its sizes and dtype: x + other, or other + x.
class SumComputation final : public Computation {
 public:
  /// `other` may be the other tensor's values channels last (Note [Channels last]), where x takes such sums.
  SumComputation(const Tensor& x, const Tensor& other, bool other_first, bool channels_last = false)
      : Computation({x, other}), other_first_(other_first), channels_last_(channels_last) {}

  const Tensor& other() const { return input(1); }
  bool other_first() const { return other_first_; }
  bool is_channels_last() const { return channels_last_; }

 private:
  void compute() override;
  Tensor continue_channels_last(const Tensor& values) override;

  bool other_first_, channels_last_;
};

/// a + b joined to what one of them waits for; undefined if none does, or the kernels that it could join do not take
/// it.
Tensor joined_sum(const Tensor& a, const Tensor& b);
/// target += other by way of joined_sum(), whose result becomes target's memory: where target is a pending result that
/// no view, no other tensor and no operation for its gradient shares. False, with nothing done, if that is not so.
bool replace_by_joined_sum(const Tensor& target, const Tensor& other);

}  // namespace lockstep
