// The binary family, comparisons and where() in Note [Elementwise chains].

#include <algorithm>

#include "lockstep/autograd/ops/binary/binary_computation.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/elementwise_computation.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

using Values = ElementwiseComputation::Values;

int cost_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::add:
    case BinaryOp::mul:
    case BinaryOp::maximum:
    case BinaryOp::minimum:
    case BinaryOp::lerp:
    case BinaryOp::prelu:
    case BinaryOp::prelu_by_input:
    case BinaryOp::prelu_by_weight:
    case BinaryOp::copysign:
    case BinaryOp::greater_share:
    case BinaryOp::selected:
      return 1;
    case BinaryOp::div:
    case BinaryOp::div_by_other:
      return 4;
    case BinaryOp::exp_difference:
    case BinaryOp::exp_share:
      return 10;
    default:
      return 20;
  }
}

/// An operand that is an input of the computation, or a number.
template <typename C>
class Side {
 public:
  /// `next`: the first input that is not taken yet.
  Side(const Operand& operand, int& next)
      : index_(operand.tensor ? next++ : -1), number_(operand.scalar), value_(static_cast<C>(number_.to_double())) {}

  BinarySide<C> row(const Values* operands) const {
    if (index_ < 0) return {&value_, true, 0};
    return {static_cast<const C*>(operands[index_].data), operands[index_].one, 0};
  }
  Operand operand(std::span<const Tensor> inputs) const {
    return index_ < 0 ? Operand(number_) : Operand(inputs[static_cast<std::size_t>(index_)]);
  }

 private:
  int index_;
  Scalar number_;
  C value_;
};

/// Two operands, one of them a tensor at least.
template <typename C>
struct Sides {
  explicit Sides(const Operand& of_a, const Operand& of_b, int next = 0) : a(of_a, next), b(of_b, next) {}
  Side<C> a, b;
};

/// Calls make(tensors) with those of the operands that are tensors.
template <typename Make>
Tensor with_tensors(const Operand& a, const Operand& b, Make&& make) {
  if (!a.tensor) return make({*b.tensor});
  if (!b.tensor) return make({*a.tensor});
  return make({*a.tensor, *b.tensor});
}

/// Those of the operands that are tensors.
using TensorOperands = std::initializer_list<Tensor>;

template <typename C>
class BinaryElementwise final : public ElementwiseComputation {
 public:
  BinaryElementwise(TensorOperands tensors, BinaryOp op, double alpha, const Sides<C>& sides, const Shape& sizes)
      : ElementwiseComputation(tensors, sizes, dtype_of<C>, dtype_of<C>, cost_of(op)),
        op_(op),
        alpha_(alpha),
        sides_(sides),
        rows_(binary_rows<C>(op)) {
    LOCKSTEP_ASSERT(rows_, "operation {} has no {} kernel", profile_label(op), name(dtype_of<C>));
  }

 private:
  void apply(const Values* operands, void* out, std::int64_t count) const override {
    rows_(alpha_, sides_.a.row(operands), sides_.b.row(operands), static_cast<C*>(out), 0, 1, count);
  }
  void compute() override {
    const Tensor out = empty_result();
    constexpr KernelTable<BinaryKernel> kernel{"binary", binary_cpu};
    kernel(out)(op_, alpha_, sides_.a.operand(inputs()), sides_.b.operand(inputs()), dtype_of<C>, out);
    deliver(0, out);
  }

  BinaryOp op_;
  double alpha_;
  Sides<C> sides_;
  BinaryRows<C, C> rows_;
};

template <typename C>
class CompareElementwise final : public ElementwiseComputation {
 public:
  CompareElementwise(TensorOperands tensors, CompareOp op, const Sides<C>& sides, const Shape& sizes)
      : ElementwiseComputation(tensors, sizes, kBool, dtype_of<C>, 1),
        op_(op),
        sides_(sides),
        rows_(compare_rows<C>(op)) {}

 private:
  void apply(const Values* operands, void* out, std::int64_t count) const override {
    bool truths[kMostElements];
    rows_(1.0, sides_.a.row(operands), sides_.b.row(operands), truths, 0, 1, count);
    const auto* const bytes = reinterpret_cast<const unsigned char*>(truths);
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) static_cast<C*>(out)[i] = static_cast<C>(bytes[i]);
  }
  void compute() override {
    const Tensor out = empty_result();
    constexpr KernelTable<CompareKernel> kernel{"compare", compare_cpu};
    kernel(out)(op_, sides_.a.operand(inputs()), sides_.b.operand(inputs()), dtype_of<C>, out);
    deliver(0, out);
  }

  CompareOp op_;
  Sides<C> sides_;
  BinaryRows<C, bool> rows_;
};

/// Input 0 is the condition.
template <typename C>
class WhereElementwise final : public ElementwiseComputation {
 public:
  WhereElementwise(TensorOperands tensors, const Sides<C>& sides, const Shape& sizes)
      : ElementwiseComputation(tensors, sizes, dtype_of<C>, dtype_of<C>, 1), sides_(sides) {}

 private:
  void apply(const Values* operands, void* out, std::int64_t count) const override {
    const BinarySide<C> a = sides_.a.row(operands), b = sides_.b.row(operands);
    const auto* const chosen = static_cast<const C*>(operands[0].data);
    if (operands[0].one) return copy(chosen[0] != C(0) ? a : b, static_cast<C*>(out), count);
    const auto choose = [&](auto first, auto second) {
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < count; ++i) {
        const C x = first(i), y = second(i);
        static_cast<C*>(out)[i] = chosen[i] != C(0) ? x : y;
      }
    };
    const auto each_a = [from = a.data](std::int64_t i) { return from[i]; };
    const auto each_b = [from = b.data](std::int64_t i) { return from[i]; };
    const auto same_a = [value = *a.data](std::int64_t) { return value; };
    const auto same_b = [value = *b.data](std::int64_t) { return value; };
    if (a.one) return b.one ? choose(same_a, same_b) : choose(same_a, each_b);
    b.one ? choose(each_a, same_b) : choose(each_a, each_b);
  }
  static void copy(BinarySide<C> from, C* out, std::int64_t count) {
    from.one ? std::fill_n(out, count, *from.data) : std::copy_n(from.data, count, out);
  }
  void compute() override {
    const Tensor out = empty_result();
    constexpr KernelTable<WhereKernel> kernel{"where", where_cpu};
    kernel(out)(input(0), sides_.a.operand(inputs()), sides_.b.operand(inputs()), out);
    deliver(0, out);
  }

  Sides<C> sides_;
};

bool may_wait(const Shape& sizes, DType type, const Operand& a, const Operand& b, const Tensor& condition = {}) {
  const Tensor none;
  return ElementwiseComputation::may_wait(sizes, type,
                                          {&condition, a.tensor ? a.tensor : &none, b.tensor ? b.tensor : &none});
}

}  // namespace

Tensor elementwise_binary(BinaryOp op, const Operand& a, const Operand& b, double alpha, const Shape& sizes,
                          DType dtype) {
  if (!may_wait(sizes, dtype, a, b)) return {};
  return with_tensors(a, b, [&](TensorOperands tensors) {
    if (dtype == kFloat64)
      return make_intrusive<BinaryElementwise<double>>(tensors, op, alpha, Sides<double>(a, b), sizes)->result();
    return make_intrusive<BinaryElementwise<float>>(tensors, op, alpha, Sides<float>(a, b), sizes)->result();
  });
}

Tensor elementwise_sum(const Tensor& a, const Tensor& b) {
  if (!is_pending_elementwise(a) && !is_pending_elementwise(b)) return {};
  if (a.sizes() != b.sizes() || a.dtype() != b.dtype() || a.device() != b.device()) return {};
  return elementwise_binary(BinaryOp::add, a, b, 1.0, a.sizes(), a.dtype());
}

Tensor elementwise_compare(CompareOp op, const Operand& a, const Operand& b, const Shape& sizes, DType type) {
  const auto waits = [](const Operand& x) { return x.tensor && is_pending_elementwise(*x.tensor); };
  if ((!waits(a) && !waits(b)) || !may_wait(sizes, type, a, b)) return {};  // a mask is smaller than what it is made of
  return with_tensors(a, b, [&](TensorOperands tensors) {
    if (type == kFloat64)
      return make_intrusive<CompareElementwise<double>>(tensors, op, Sides<double>(a, b), sizes)->result();
    return make_intrusive<CompareElementwise<float>>(tensors, op, Sides<float>(a, b), sizes)->result();
  });
}

Tensor elementwise_where(const Tensor& condition, const Operand& a, const Operand& b, const Shape& sizes, DType dtype) {
  if (!may_wait(sizes, dtype, a, b, condition)) return {};
  const auto make = [&](TensorOperands tensors) {
    if (dtype == kFloat64)
      return make_intrusive<WhereElementwise<double>>(tensors, Sides<double>(a, b, 1), sizes)->result();
    return make_intrusive<WhereElementwise<float>>(tensors, Sides<float>(a, b, 1), sizes)->result();
  };
  if (!a.tensor) return b.tensor ? make({condition, *b.tensor}) : make({condition});
  return b.tensor ? make({condition, *a.tensor, *b.tensor}) : make({condition, *a.tensor});
}

}  // namespace lockstep
