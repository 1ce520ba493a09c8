// The unary family in Note [Elementwise chains].

#include <algorithm>

#include "lockstep/autograd/ops/unary/unary_computation.h"
#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/core/elementwise_computation.h"

namespace lockstep {
namespace {

int cost_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::neg:
    case UnaryOp::abs:
    case UnaryOp::relu:
    case UnaryOp::sign:
    case UnaryOp::floor:
    case UnaryOp::ceil:
    case UnaryOp::round:
    case UnaryOp::trunc:
    case UnaryOp::clamp:
    case UnaryOp::square:
    case UnaryOp::cube:
    case UnaryOp::leaky_relu:
    case UnaryOp::hardtanh:
    case UnaryOp::hardswish:
    case UnaryOp::hardsigmoid:
    case UnaryOp::frac:
    case UnaryOp::nan_to_num:
      return 1;
    case UnaryOp::sqrt:
    case UnaryOp::rsqrt:
    case UnaryOp::reciprocal:
    case UnaryOp::softsign:
      return 4;
    case UnaryOp::exp:
    case UnaryOp::sigmoid:
    case UnaryOp::silu:
      return 10;
    default:
      return 17;
  }
}

/// A row of `count` values where there may be one for all, written to `room` then.
template <typename C>
const C* whole_row(const ElementwiseComputation::Values& values, C* room, std::int64_t count) {
  const auto* const from = static_cast<const C*>(values.data);
  if (!values.one) return from;
  std::fill_n(room, count, *from);
  return room;
}

template <typename C>
class UnaryElementwise final : public ElementwiseComputation {
 public:
  UnaryElementwise(UnaryOp op, UnaryParams params, const Tensor& x)
      : ElementwiseComputation({x}, x.sizes(), dtype_of<C>, dtype_of<C>, cost_of(op)),
        op_(op),
        params_(params),
        row_(unary_row<C>(op)) {}

 private:
  void apply(const Values* operands, void* out, std::int64_t count) const override {
    C* const to = static_cast<C*>(out);
    row_(params_, whole_row(operands[0], to, count), to, count);
  }
  void compute() override {
    const Tensor out = empty_result();
    constexpr KernelTable<UnaryKernel> kernel{"unary", unary_cpu};
    kernel(out)(op_, params_, input(0), out);
    deliver(0, out);
  }

  UnaryOp op_;
  UnaryParams params_;
  UnaryRow<C> row_;
};

template <typename C>
class UnaryGradientElementwise final : public ElementwiseComputation {
 public:
  UnaryGradientElementwise(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved)
      : ElementwiseComputation({grad, saved}, grad.sizes(), dtype_of<C>, dtype_of<C>, cost_of(op) + 1),
        op_(op),
        params_(params),
        row_(unary_backward_row<C>(op)) {}

 private:
  void apply(const Values* operands, void* out, std::int64_t count) const override {
    C* const to = static_cast<C*>(out);
    const C* const grad = whole_row(operands[0], to, count);
    if (!operands[1].one) return row_(params_, grad, static_cast<const C*>(operands[1].data), to, count);
    C room[kMostElements];
    row_(params_, grad, whole_row(operands[1], room, count), to, count);
  }
  void compute() override {
    const Tensor out = empty_result();
    constexpr KernelTable<UnaryBackwardKernel> kernel{"unary backward", unary_backward_cpu};
    kernel(out)(op_, params_, input(0), input(1), out);
    deliver(0, out);
  }

  UnaryOp op_;
  UnaryParams params_;
  UnaryBackwardRow<C> row_;
};

}  // namespace

Tensor elementwise_unary(UnaryOp op, UnaryParams params, const Tensor& x, DType dtype) {
  if (!ElementwiseComputation::may_wait(x.sizes(), dtype, {&x})) return {};
  if (dtype == kFloat64) return make_intrusive<UnaryElementwise<double>>(op, params, x)->result();
  return make_intrusive<UnaryElementwise<float>>(op, params, x)->result();
}

Tensor elementwise_unary_gradient(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved, bool joins) {
  if (grad.sizes() != saved.sizes() || grad.device() != saved.device()) return {};
  if (!joins && !is_pending_elementwise(grad) && !is_pending_elementwise(saved)) return {};
  if (!ElementwiseComputation::may_wait(grad.sizes(), grad.dtype(), {&grad, &saved})) return {};
  if (grad.dtype() == kFloat64)
    return make_intrusive<UnaryGradientElementwise<double>>(op, params, grad, saved)->result();
  return make_intrusive<UnaryGradientElementwise<float>>(op, params, grad, saved)->result();
}

}  // namespace lockstep
