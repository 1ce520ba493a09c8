// Sums that are computed with what one of the addends waits for (Note [Pending values]).

#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/ops/binary/binary_computation.h"
#include "lockstep/autograd/ops/binary/binary_kernels.h"
#include "lockstep/core/channels_last.h"

namespace lockstep {
namespace {

bool same_kind(const Tensor& a, const Tensor& b) {
  return a.sizes() == b.sizes() && a.dtype() == b.dtype() && a.device() == b.device();
}

/// joined_sum() on CUDA devices, of what is laid out (Note [Channels last]).
Tensor joined_sum_channels_last(const Tensor& a, const Tensor& b) {
  const auto takes = [](const Tensor& x) {
    const Computation* const waited_for = joinable(x);
    return waited_for && waited_for->takes_sum(x.sizes());
  };
  const bool b_waits = !takes(a);
  const Tensor &pending = b_waits ? b : a, &other = b_waits ? a : b;
  if (!takes(pending)) return {};
  const Tensor values = to_channels_last(other);
  if (!takes(pending)) return {};
  return make_intrusive<SumComputation>(pending, values, b_waits, true)->add_result(a.sizes(), options_of(a));
}

}  // namespace

Tensor joined_sum(const Tensor& a, const Tensor& b) {
  if (!a.defined() || !b.defined() || !(can_be_joined(a) || can_be_joined(b))) return {};
  if (!same_kind(a, b)) return {};
  if (a.device().is_cuda()) return joined_sum_channels_last(a, b);
  if (a.dtype() != kFloat32 || !a.is_contiguous() || !b.is_contiguous()) return {};
  const bool b_waits = !can_be_joined(a);
  const Tensor &pending = b_waits ? b : a, &other = b_waits ? a : b;
  other.storage()->settle();
  if (other.storage()->is_lent() || !can_be_joined(pending)) return {};
  return make_intrusive<SumComputation>(pending, other, b_waits)->add_result(a.sizes(), options_of(a));
}

bool replace_by_joined_sum(const Tensor& target, const Tensor& other) {
  if (!target.defined() || !other.defined() || !target.storage()->is_pending()) return false;
  TensorImpl& impl = *target.impl();
  const bool known = target.storage()->use_count() != 1 || impl.viewed || impl.unrecorded_view ||
                     impl.saved.load(std::memory_order_relaxed);
  if (known || (target.is_leaf() && target.requires_grad())) return false;
  const Tensor old = target.detach();
  Tensor sum = joined_sum(old, other);
  // Written in place, what is laid out would have to be copied into its own order first.
  if (!sum.defined() && is_laid_out(old) && same_kind(old, other)) sum = binary_values(BinaryOp::add, old, other);
  if (!sum.defined()) return false;
  // Who compares versions sees a change.
  while (sum.storage()->version() <= old.storage()->version()) sum.storage()->bump_version();
  impl.storage = sum.storage();
  return true;
}

void SumComputation::compute() {
  const Tensor &x = input(0), other = channels_last_ ? in_order_of_channels(input(1)) : input(1);
  deliver(0, other_first_ ? binary_values(BinaryOp::add, other, x) : binary_values(BinaryOp::add, x, other));
}

Tensor SumComputation::continue_channels_last(const Tensor& values) {
  if (!channels_last_) return {};
  return other_first_ ? binary_values(BinaryOp::add, input(1), values) : binary_values(BinaryOp::add, values, input(1));
}

}  // namespace lockstep
