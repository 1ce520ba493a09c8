#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "lockstep/autograd/ops/binary/binary_functors.h"
#include "lockstep/autograd/ops/binary/binary_kernels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/double_math_lines.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/integer_cast.h"

namespace lockstep {
namespace {

using cpu::kRowChunk;

template <typename C>
using Side = BinarySide<C>;

/// Some operations have a straight line for operands that are "near": remainder() and floor division of floating-point
/// numbers where the quotient is far below the numbers that have no fractions, powers of doubles where nothing is
/// special. The bits are those of the functors, which call fmod() and portable_pow().
template <typename F>
struct Rest {
  static constexpr bool kAny = false;
};
/// What fmod(a, b) is if |a / b| < kMost and b is finite. Rounding may raise the quotient to the next whole number,
/// never above it; the difference is exact either way, and one more step brings the sign back.
template <typename C>
struct NearRest {
  static constexpr bool kAny = true;
  static constexpr C kMost = std::is_same_v<C, float> ? C(0x1p22) : C(0x1p51);
  static bool is_near(C a, C b) { return (std::fabs(a / b) < kMost) & (std::fabs(b) <= std::numeric_limits<C>::max()); }
  static C rest(C a, C b) {
    const C r = std::fma(-std::trunc(a / b), b, a);
    const bool turned = (r != C(0)) & ((r < C(0)) != (a < C(0)));
    return std::copysign(turned ? r + std::copysign(b, a) : r, a);
  }
};
template <typename C>
requires std::is_floating_point_v<C>
struct Rest<binary::Fmod<C>> : NearRest<C> {
  static C value(C a, C b) { return NearRest<C>::rest(a, b); }
};
template <typename C>
requires std::is_floating_point_v<C>
struct Rest<binary::Remainder<C>> : NearRest<C> {
  static C value(C a, C b) {
    const C r = NearRest<C>::rest(a, b);
    return ((r != C(0)) & ((r < C(0)) != (b < C(0)))) ? r + b : r;
  }
};
template <typename C>
requires std::is_floating_point_v<C>
struct Rest<binary::DivFloor<C>> : NearRest<C> {
  static C value(C a, C b) {
    const C r = NearRest<C>::rest(a, b);
    const C below = ((r != C(0)) & ((r < C(0)) != (b < C(0)))) ? C(1) : C(0);
    const C quotient = (a - r) / b - below;
    return quotient == C(0) ? std::copysign(C(0), a / b) : std::nearbyint(quotient);
  }
};

template <>
struct Rest<binary::Pow<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double a, double b) { return math::lines::is_near_pow(a, b); }
  static double value(double a, double b) { return math::lines::pow_of_near(a, b); }
};
template <>
struct Rest<binary::PowByBase<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double a, double b) { return math::lines::is_near_pow(a, b - 1) & (b != 0); }
  static double value(double a, double b) { return b * math::lines::pow_of_near(a, b - 1); }
};

/// Calls f over the operands' elements, if they are all near.
template <typename F, typename A, typename B, typename O>
bool apply_near(A&& a, B&& b, O* out, std::int64_t count) {
  std::int32_t far = 0;
  for (std::int64_t i = 0; i < count; ++i) far |= Rest<F>::is_near(a(i), b(i)) ? 0 : 1;
  if (far != 0) return false;
  LOCKSTEP_VECTORIZE
  for (std::int64_t i = 0; i < count; ++i) out[i] = Rest<F>::value(a(i), b(i));
  return true;
}

// Flattened: a call in a loop would keep it from being vectorised.
template <typename F, typename C, typename O>
[[gnu::flatten]] void apply_row(const F& f, const C* a, bool one_a, const C* b, bool one_b, O* out,
                                std::int64_t count) {
  if constexpr (Rest<F>::kAny) {
    const auto each_a = [a](std::int64_t i) { return a[i]; };
    const auto each_b = [b](std::int64_t i) { return b[i]; };
    if (one_b ? !one_a && apply_near<F>(
                              each_a, [value = *b](std::int64_t) { return value; }, out, count)
              : (one_a ? apply_near<F>([value = *a](std::int64_t) { return value; }, each_b, out, count)
                       : apply_near<F>(each_a, each_b, out, count)))
      return;
  }
  if (one_b) {
    const C second = *b;
    if (one_a) {
      std::fill_n(out, count, f(*a, second));
      return;
    }
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) out[i] = f(a[i], second);
  } else if (one_a) {
    const C first = *a;
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) out[i] = f(first, b[i]);
  } else {
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) out[i] = f(a[i], b[i]);
  }
}

template <typename F, typename C, typename O>
void apply_rows(double alpha, Side<C> a, Side<C> b, O* out, std::int64_t step, std::int64_t rows, std::int64_t count) {
  F f{};
  if constexpr (requires { F{static_cast<C>(alpha)}; }) f = F{static_cast<C>(alpha)};
  for (; rows > 0; --rows, a.data += a.step, b.data += b.step, out += step)
    apply_row(f, a.data, a.one, b.data, b.one, out, count);
}

template <typename C>
BinaryRows<C, C> rows_function(BinaryOp op) {
  BinaryRows<C, C> rows = nullptr;
  binary::visit<C>(op, [&]<typename F>() { rows = apply_rows<F, C, C>; });
  return rows;
}

template <typename C>
BinaryRows<C, bool> rows_function(CompareOp op) {
  BinaryRows<C, bool> rows = nullptr;
  binary::visit<C>(op, [&]<typename F>() { rows = apply_rows<F, C, bool>; });
  return rows;
}

/// An operand's elements. A scalar is a row of stride 0 in `value`.
template <typename C>
struct Source : cpu::RowSource<C> {
  C value{};

  explicit Source(const Operand& operand) {
    if (operand.tensor) {
      this->data = operand.tensor->raw_data();
      this->dtype = operand.tensor->dtype();
      return;
    }
    if constexpr (std::is_same_v<C, std::int64_t>) {
      value = operand.scalar.is_floating_point() ? integer_cast<std::int64_t>(operand.scalar.to_double())
                                                 : operand.scalar.to_int64();
    } else {
      value = static_cast<C>(operand.scalar.to_double());
    }
    this->data = &value;
    this->dtype = dtype_of<C>;
  }
  Source(const Source&) = delete;

  const C* values() const { return static_cast<const C*>(this->data); }
  bool direct(std::int64_t stride) const { return this->dtype == dtype_of<C> && (stride == 1 || stride == 0); }
};

/// Rows that are read or written in place, or lie one behind the other.
bool joins(bool in_place, std::int64_t step, std::int64_t stride, std::int64_t length) {
  return in_place || (stride == 1 && step == length);
}

bool dense_as(const Operand& operand, const Tensor& out) {
  return !operand.tensor || (operand.tensor->is_contiguous() && operand.tensor->sizes() == out.sizes());
}

template <typename C, typename O, typename Op>
void run(Op op, double alpha, const Operand& a, const Operand& b, const Tensor& out) {
  const BinaryRows<C, O> apply = rows_function<C>(op);
  LOCKSTEP_ASSERT(apply, "operation {} has no {} kernel", static_cast<int>(op), name(dtype_of<C>));
  const Source<C> from_a(a), from_b(b);
  const cpu::RowTarget<O> target{out.raw_data(), out.dtype()};
  const auto row = [&](std::int64_t at, std::int64_t at_a, std::int64_t at_b, std::int64_t step, std::int64_t step_a,
                       std::int64_t step_b, std::int64_t length) {
    C buffer_a[kRowChunk], buffer_b[kRowChunk];
    O buffer[kRowChunk];
    for (std::int64_t i = 0; i < length; i += kRowChunk) {
      const std::int64_t count = std::min(kRowChunk, length - i);
      O* to = target.row(at + i * step, step, buffer);
      apply(alpha, {from_a.row_or_one(at_a + i * step_a, step_a, count, buffer_a), step_a == 0, 0},
            {from_b.row_or_one(at_b + i * step_b, step_b, count, buffer_b), step_b == 0, 0}, to, 0, 1, count);
      target.finish(to, at + i * step, step, count);
    }
  };
  // Short rows, as many at a time as the buffers hold; those of another dtype lie one behind the other.
  const auto several = [&](auto offset, const auto& steps, const auto& stride, std::int64_t rows, std::int64_t length) {
    C buffer_a[kRowChunk], buffer_b[kRowChunk];
    O buffer[kRowChunk];
    const auto side = [&](const Source<C>& from, std::size_t n, std::int64_t taken, C* values) -> Side<C> {
      if (from.direct(stride[n])) return {from.values() + offset[n], stride[n] == 0, steps[n]};
      return {from.row(offset[n], 1, taken * length, values), false, length};
    };
    const bool writes = target.writable(stride[0]);
    while (rows > 0) {
      const std::int64_t taken = std::min(rows, kRowChunk / length);
      apply(alpha, side(from_a, 1, taken, buffer_a), side(from_b, 2, taken, buffer_b),
            target.row(offset[0], stride[0], buffer), writes ? steps[0] : length, taken, length);
      target.finish(buffer, offset[0], stride[0], taken * length);
      for (std::size_t n = 0; n < 3; ++n) offset[n] += taken * steps[n];
      rows -= taken;
    }
  };
  if (out.is_contiguous() && dense_as(a, out) && dense_as(b, out)) {
    const std::int64_t step_a = a.tensor ? 1 : 0, step_b = b.tensor ? 1 : 0;
    const bool direct = target.writable(1) && from_a.direct(step_a) && from_b.direct(step_b);
    parallel_for(out.numel(), cpu::kElementBlock, [&](std::int64_t begin, std::int64_t end) {
      if (!direct) return row(begin, begin * step_a, begin * step_b, 1, step_a, step_b, end - begin);
      apply(alpha, {from_a.values() + begin * step_a, !a.tensor, 0}, {from_b.values() + begin * step_b, !b.tensor, 0},
            static_cast<O*>(target.data) + begin, 0, 1, end - begin);
    });
    return;
  }
  // Reading across the lines of the cache takes longer than turning an operand, line by line, and reading it in order.
  if (out.is_contiguous())
    for (const Operand* each : {&a, &b}) {
      if (!each->tensor || each->tensor->sizes() != out.sizes() || !lies_turned(*each->tensor)) continue;
      const Tensor turned = copy_contiguous(*each->tensor);
      return each == &a ? run<C, O>(op, alpha, turned, b, out) : run<C, O>(op, alpha, a, turned, out);
    }
  // What is read several times is converted once.
  for (const Operand* each : {&a, &b}) {
    if (!each->tensor || each->tensor->dtype() == dtype_of<C> || 2 * each->tensor->numel() > out.numel()) continue;
    const Tensor converted = cast_values(*each->tensor, dtype_of<C>);
    return each == &a ? run<C, O>(op, alpha, converted, b, out) : run<C, O>(op, alpha, a, converted, out);
  }
  // A scalar walks along with the other operand's offsets, and is read at none of them.
  const Tensor& tensor_a = a.tensor ? *a.tensor : *b.tensor;
  const Tensor& tensor_b = b.tensor ? *b.tensor : *a.tensor;
  auto loop = cpu::plan_loop<3>(out.sizes(), {&out, &tensor_a, &tensor_b});
  if (!a.tensor) loop.strides[1] = Shape::filled(loop.sizes.dim(), 0);
  if (!b.tensor) loop.strides[2] = Shape::filled(loop.sizes.dim(), 0);
  cpu::for_each_plane(loop,
                      [&](auto offset, const auto& steps, const auto& stride, std::int64_t rows, std::int64_t length) {
                        if (target.writable(stride[0]) && from_a.direct(stride[1]) && from_b.direct(stride[2]))
                          return apply(alpha, {from_a.values() + offset[1], stride[1] == 0, steps[1]},
                                       {from_b.values() + offset[2], stride[2] == 0, steps[2]},
                                       static_cast<O*>(target.data) + offset[0], steps[0], rows, length);
                        if (2 * length <= kRowChunk && joins(from_a.direct(stride[1]), steps[1], stride[1], length) &&
                            joins(from_b.direct(stride[2]), steps[2], stride[2], length) &&
                            joins(target.writable(stride[0]), steps[0], stride[0], length))
                          return several(offset, steps, stride, rows, length);
                        for (; rows > 0; --rows) {
                          row(offset[0], offset[1], offset[2], stride[0], stride[1], stride[2], length);
                          for (std::size_t n = 0; n < 3; ++n) offset[n] += steps[n];
                        }
                      });
}

template <typename C>
void choose_row(const bool* chosen, std::int64_t stride, const C* a, bool one_a, const C* b, bool one_b, C* out,
                std::int64_t count) {
  if (stride != 1) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = chosen[i * stride] ? a[one_a ? 0 : i] : b[one_b ? 0 : i];
    return;
  }
  // Read as bytes, because a select on bool does not vectorise.
  const auto* mask = reinterpret_cast<const unsigned char*>(chosen);
  const auto apply = [&](auto first, auto second) {
    LOCKSTEP_VECTORIZE
    for (std::int64_t i = 0; i < count; ++i) {
      const C x = first(i), y = second(i);
      out[i] = mask[i] != 0 ? x : y;
    }
  };
  const auto all_a = [a](std::int64_t i) { return a[i]; };
  const auto all_b = [b](std::int64_t i) { return b[i]; };
  const auto same_a = [value = *a](std::int64_t) { return value; };
  const auto same_b = [value = *b](std::int64_t) { return value; };
  if (one_a) return one_b ? apply(same_a, same_b) : apply(same_a, all_b);
  one_b ? apply(all_a, same_b) : apply(all_a, all_b);
}

/// Two truth values at a time, as bytes, which are 0 or 1.
template <typename F>
void run_bytes(F&& f, const Operand& a, const Operand& b, const Tensor& out) {
  const Tensor& tensor_a = a.tensor ? *a.tensor : *b.tensor;
  const Tensor& tensor_b = b.tensor ? *b.tensor : *a.tensor;
  const auto truth = [](const Operand& operand) {
    return operand.tensor ? std::uint8_t{0} : static_cast<std::uint8_t>(operand.scalar.to_double() != 0 ? 1 : 0);
  };
  const std::uint8_t scalar_a = truth(a), scalar_b = truth(b);
  const auto* from_a = a.tensor ? static_cast<const std::uint8_t*>(tensor_a.raw_data()) : &scalar_a;
  const auto* from_b = b.tensor ? static_cast<const std::uint8_t*>(tensor_b.raw_data()) : &scalar_b;
  auto* to = static_cast<std::uint8_t*>(out.raw_data());
  const auto loop = cpu::plan_loop<3>(out.sizes(), {&out, &tensor_a, &tensor_b});
  cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
    const std::int64_t step_a = a.tensor ? stride[1] : 0, step_b = b.tensor ? stride[2] : 0;
    const std::uint8_t* row_a = from_a + (a.tensor ? offset[1] : 0);
    const std::uint8_t* row_b = from_b + (b.tensor ? offset[2] : 0);
    std::uint8_t* row = to + offset[0];
    if (stride[0] == 1 && step_a == 1 && step_b == 1) {
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < length; ++i) row[i] = f(row_a[i], row_b[i]);
    } else if (stride[0] == 1 && step_a == 1 && step_b == 0) {
      LOCKSTEP_VECTORIZE
      for (std::int64_t i = 0; i < length; ++i) row[i] = f(row_a[i], *row_b);
    } else {
      for (std::int64_t i = 0; i < length; ++i) row[i * stride[0]] = f(row_a[i * step_a], row_b[i * step_b]);
    }
  });
}

/// True if each operand is a tensor of bool or a number that is 0 or 1, and not both are numbers.
bool are_truths(const Operand& a, const Operand& b) {
  const auto is_truth = [](const Operand& operand) {
    if (operand.tensor) return operand.tensor->dtype() == kBool;
    const double value = operand.scalar.to_double();
    return value == 0.0 || value == 1.0;
  };
  return (a.tensor || b.tensor) && is_truth(a) && is_truth(b);
}

}  // namespace

void binary_cpu(BinaryOp op, double alpha, const Operand& a, const Operand& b, DType compute, const Tensor& out) {
  if (out.dtype() == kBool && compute == kInt64 && are_truths(a, b)) {
    if (op == BinaryOp::mul || op == BinaryOp::minimum)
      return run_bytes([](std::uint8_t x, std::uint8_t y) { return static_cast<std::uint8_t>(x & y); }, a, b, out);
    if ((op == BinaryOp::add && alpha == 1.0) || op == BinaryOp::maximum)
      return run_bytes([](std::uint8_t x, std::uint8_t y) { return static_cast<std::uint8_t>(x | y); }, a, b, out);
  }
  with_compute_type(compute, [&]<typename C>() { run<C, C>(op, alpha, a, b, out); });
}

template <typename C>
BinaryRows<C, C> binary_rows(BinaryOp op) {
  return rows_function<C>(op);
}
template BinaryRows<float, float> binary_rows(BinaryOp);
template BinaryRows<double, double> binary_rows(BinaryOp);
template <typename C>
BinaryRows<C, bool> compare_rows(CompareOp op) {
  return rows_function<C>(op);
}
template BinaryRows<float, bool> compare_rows(CompareOp);
template BinaryRows<double, bool> compare_rows(CompareOp);

void compare_cpu(CompareOp op, const Operand& a, const Operand& b, DType compute, const Tensor& out) {
  if (compute == kInt64 && are_truths(a, b)) {
    if (op == CompareOp::equal)
      return run_bytes([](std::uint8_t x, std::uint8_t y) { return static_cast<std::uint8_t>(x ^ y ^ 1); }, a, b, out);
    if (op == CompareOp::not_equal)
      return run_bytes([](std::uint8_t x, std::uint8_t y) { return static_cast<std::uint8_t>(x ^ y); }, a, b, out);
  }
  with_compute_type(compute, [&]<typename C>() { run<C, bool>(op, 1.0, a, b, out); });
}

void where_cpu(const Tensor& condition, const Operand& a, const Operand& b, const Tensor& out) {
  with_compute_type(cpu::compute_dtype(out.dtype()), [&]<typename C>() {
    const Source<C> from_a(a), from_b(b);
    const cpu::RowTarget<C> target{out.raw_data(), out.dtype()};
    const bool* chosen = condition.data<bool>();
    const auto loop = cpu::plan_loop<4>(
        out.sizes(), {&out, &condition, a.tensor ? a.tensor : &condition, b.tensor ? b.tensor : &condition});
    cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
      C buffer_a[kRowChunk], buffer_b[kRowChunk], buffer[kRowChunk];
      const std::int64_t step_a = a.tensor ? stride[2] : 0, step_b = b.tensor ? stride[3] : 0;
      for (std::int64_t i = 0; i < length; i += kRowChunk) {
        const std::int64_t count = std::min(kRowChunk, length - i);
        const C* row_a = from_a.row_or_one(a.tensor ? offset[2] + i * step_a : 0, step_a, count, buffer_a);
        const C* row_b = from_b.row_or_one(b.tensor ? offset[3] + i * step_b : 0, step_b, count, buffer_b);
        const bool* row = chosen + offset[1] + i * stride[1];
        C* to = target.row(offset[0] + i * stride[0], stride[0], buffer);
        choose_row(row, stride[1], row_a, step_a == 0, row_b, step_b == 0, to, count);
        target.finish(to, offset[0] + i * stride[0], stride[0], count);
      }
    });
  });
}

}  // namespace lockstep
