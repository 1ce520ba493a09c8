#include <algorithm>
#include <type_traits>

#include "lockstep/autograd/ops/unary/unary_functors.h"
#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/autograd/ops/unary/unary_lines.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/cpu/write_row.h"
#include "lockstep/core/double_math_lines.h"
#include "lockstep/core/elementwise.h"

namespace lockstep {
namespace {

using cpu::kRowChunk;
using unary::Line;
using unary::NearLine;
using unary::SlopeOfPow;

/// out[i] = finish(i, v) for the value v of x[i], by the line where it holds, by `other` elsewhere. out may be x.
template <typename L, typename Value, typename Other, typename Finish>
void apply_line(const double* x, std::int64_t count, double* out, L line, Value value, Other&& other, Finish finish) {
  double near[kRowChunk];
  for (std::int64_t begin = 0; begin < count; begin += kRowChunk) {
    const std::int64_t n = std::min(kRowChunk, count - begin);
    const double* const from = x + begin;
    if (cpu::by_widest_vectors(
            [=] { return math::lines::all_near(n, [=](std::int64_t i) { return line.is_near(from[i]); }); })) {
      cpu::write_row(
          out + begin,
          n, [=](std::int64_t i) __attribute__((always_inline)) { return finish(begin + i, value(line, from[i])); });
      continue;
    }
    // Arguments beyond the line are replaced, so that no line meets them. In loops of their own: in one the compiler
    // would compute the line of what replaces them beforehand, and branch.
    for (std::int64_t i = 0; i < n; ++i) near[i] = line.is_near(from[i]) ? from[i] : 1.0;
    cpu::write_row(
        near, n, [ at = static_cast<const double*>(near), line,
                   value ](std::int64_t i) __attribute__((always_inline)) { return value(line, at[i]); });
    for (std::int64_t i = 0; i < n; ++i)
      out[begin + i] = finish(begin + i, line.is_near(from[i]) ? near[i] : other(begin + i));
  }
}
/// The value, or the slope, of a line: kinds of `value` above.
struct ValueOf {
  template <typename L>
  [[gnu::always_inline]] double operator()(const L& line, double x) const {
    return line.value(x);
  }
};
struct SlopeOf {
  template <typename L>
  [[gnu::always_inline]] double operator()(const L& line, double x) const {
    return line.slope(x);
  }
};

template <typename N>
bool all_near(const float* x, std::int64_t count) {
  std::int32_t far = 0;
  for (std::int64_t i = 0; i < count; ++i) far |= N::is_near(x[i]) ? 0 : 1;
  return far == 0;
}

template <typename C>
UnaryRow<C> row_function(UnaryOp op) {
  UnaryRow<C> row = nullptr;
  unary::visit<C>(op, [&]<typename F>() {
    row = [](UnaryParams params, const C* x, C* out, std::int64_t count) {
      const F f(params);
      if constexpr (NearLine<F>::kAny)
        if (all_near<NearLine<F>>(x, count)) {
          return cpu::write_row(
              out, count, [x](std::int64_t i) __attribute__((always_inline)) { return NearLine<F>::value(x[i]); });
        }
      if constexpr (requires { typename NearLine<F>::Wider; }) {
        using Wider = typename NearLine<F>::Wider;
        if (all_near<Wider>(x, count))
          return cpu::write_row(
              out, count, [x](std::int64_t i) __attribute__((always_inline)) { return Wider::value(x[i]); });
      }
      if constexpr (Line<F>::kAny)
        return apply_line(
            x, count, out, Line<F>(f), ValueOf{}, [&](std::int64_t i) { return f.value(x[i]); },
            [](std::int64_t, double value) { return value; });
      cpu::write_row(out, count, [x, f](std::int64_t i) { return f.value(x[i]); });
    };
  });
  LOCKSTEP_ASSERT(row, "unary operation {} has no {} kernel", static_cast<int>(op), name(dtype_of<C>));
  return row;
}

template <typename C>
UnaryBackwardRow<C> backward_row_function(UnaryOp op) {
  UnaryBackwardRow<C> row = nullptr;
  unary::visit<C>(op, [&]<typename F>() {
    row = [](UnaryParams params, const C* grad, const C* saved, C* out, std::int64_t count) {
      const F f(params);
      if constexpr (requires { NearLine<F>::gradient(grad[0], saved[0]); })
        if (all_near<NearLine<F>>(saved, count)) {
          return cpu::write_row(
              out, count, [ grad, saved ](std::int64_t i) __attribute__((always_inline)) {
                return NearLine<F>::gradient(grad[i], saved[i]);
              });
        }
      const auto finish = [grad](std::int64_t i, double slope) { return grad[i] * slope; };
      const auto other = [&](std::int64_t i) { return f.gradient(1.0, saved[i]); };
      if constexpr (requires(const Line<F>& line) { line.slope(1.0); })
        return apply_line(saved, count, out, Line<F>(f), SlopeOf{}, other, finish);
      if constexpr (std::is_same_v<F, unary::Pow<double>>)
        if (f.exponent != 0) return apply_line(saved, count, out, SlopeOfPow{f.exponent}, SlopeOf{}, other, finish);
      cpu::write_row(out, count, [grad, saved, f](std::int64_t i) { return f.gradient(grad[i], saved[i]); });
    };
  });
  return row;
}

/// Whether the rows that remain of the dimensions are so short that the call for each takes longer than a copy of all.
template <int N>
bool has_short_rows(const cpu::StridedLoop<N>& loop) {
  constexpr std::int64_t kShort = 64;
  return loop.sizes.dim() > 1 && loop.sizes.back() < kShort;
}

template <typename C>
void run(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& out) {
  const UnaryRow<C> apply = row_function<C>(op);
  const cpu::RowSource<C> source{x.raw_data(), x.dtype()};
  const cpu::RowTarget<C> target{out.raw_data(), out.dtype()};
  const auto row = [&](std::int64_t at, std::int64_t at_x, std::int64_t step, std::int64_t step_x,
                       std::int64_t length) {
    C buffer_x[kRowChunk], buffer[kRowChunk];
    const std::int64_t chunk = source.readable(step_x) && target.writable(step) ? length : kRowChunk;
    for (std::int64_t i = 0; i < length; i += chunk) {
      const std::int64_t count = std::min(chunk, length - i);
      C* to = target.row(at + i * step, step, buffer);
      apply(params, source.row(at_x + i * step_x, step_x, count, buffer_x), to, count);
      target.finish(to, at + i * step, step, count);
    }
  };
  if (x.is_contiguous() && out.is_contiguous()) {
    parallel_for(out.numel(), cpu::kElementBlock,
                 [&](std::int64_t begin, std::int64_t end) { row(begin, begin, 1, 1, end - begin); });
    return;
  }
  const auto loop = cpu::plan_loop<2>(out.sizes(), {&out, &x});
  if (out.is_contiguous() && !x.is_contiguous() && (lies_turned(x) || has_short_rows(loop))) {
    if (x.dtype() != out.dtype()) return run<C>(op, params, copy_contiguous(x), out);
    copy_values(x, out);
    return run<C>(op, params, out, out);
  }
  cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
    row(offset[0], offset[1], stride[0], stride[1], length);
  });
}

template <typename C>
void run_backward(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved, const Tensor& out) {
  const UnaryBackwardRow<C> apply = backward_row_function<C>(op);
  const cpu::RowSource<C> from_grad{grad.raw_data(), grad.dtype()};
  const cpu::RowSource<C> from_saved{saved.raw_data(), saved.dtype()};
  const cpu::RowTarget<C> target{out.raw_data(), out.dtype()};
  const auto row = [&](std::int64_t at, std::int64_t at_grad, std::int64_t at_saved, std::int64_t step,
                       std::int64_t step_grad, std::int64_t step_saved, std::int64_t length) {
    C buffer_grad[kRowChunk], buffer_saved[kRowChunk], buffer[kRowChunk];
    const bool direct = from_grad.readable(step_grad) && from_saved.readable(step_saved) && target.writable(step);
    const std::int64_t chunk = direct ? length : kRowChunk;
    for (std::int64_t i = 0; i < length; i += chunk) {
      const std::int64_t count = std::min(chunk, length - i);
      C* to = target.row(at + i * step, step, buffer);
      apply(params, from_grad.row(at_grad + i * step_grad, step_grad, count, buffer_grad),
            from_saved.row(at_saved + i * step_saved, step_saved, count, buffer_saved), to, count);
      target.finish(to, at + i * step, step, count);
    }
  };
  if (grad.is_contiguous() && saved.is_contiguous() && out.is_contiguous()) {
    parallel_for(out.numel(), cpu::kElementBlock,
                 [&](std::int64_t begin, std::int64_t end) { row(begin, begin, begin, 1, 1, 1, end - begin); });
    return;
  }
  const auto loop = cpu::plan_loop<3>(out.sizes(), {&out, &grad, &saved});
  if (out.is_contiguous() && !(grad.is_contiguous() && saved.is_contiguous()) && has_short_rows(loop))
    return run_backward<C>(op, params, as_contiguous(grad), as_contiguous(saved), out);
  cpu::for_each_row(loop, [&](const auto& offset, const auto& stride, std::int64_t length) {
    row(offset[0], offset[1], offset[2], stride[0], stride[1], stride[2], length);
  });
}

}  // namespace

void unary_cpu(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& out) {
  switch (cpu::compute_dtype(out.dtype())) {
    case kFloat32:
      return run<float>(op, params, x, out);
    case kFloat64:
      return run<double>(op, params, x, out);
    default:
      return run<std::int64_t>(op, params, x, out);
  }
}

void unary_backward_cpu(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved, const Tensor& out) {
  if (out.dtype() == kFloat64) return run_backward<double>(op, params, grad, saved, out);
  run_backward<float>(op, params, grad, saved, out);
}

template <typename C>
UnaryRow<C> unary_row(UnaryOp op) {
  return row_function<C>(op);
}
template <typename C>
UnaryBackwardRow<C> unary_backward_row(UnaryOp op) {
  return backward_row_function<C>(op);
}
template UnaryRow<float> unary_row(UnaryOp);
template UnaryRow<double> unary_row(UnaryOp);
template UnaryBackwardRow<float> unary_backward_row(UnaryOp);
template UnaryBackwardRow<double> unary_backward_row(UnaryOp);

}  // namespace lockstep
