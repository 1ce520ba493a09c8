#include <algorithm>
#include <type_traits>

#include "lockstep/autograd/ops/unary/unary_functors.h"
#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/cpu/write_row.h"
#include "lockstep/core/double_math_lines.h"
#include "lockstep/core/elementwise.h"

namespace lockstep {
namespace {

using cpu::kRowChunk;

template <typename C>
using Row = void (*)(UnaryParams params, const C* x, C* out, std::int64_t count);
template <typename C>
using BackwardRow = void (*)(UnaryParams params, const C* grad, const C* saved, C* out, std::int64_t count);

/// sin() and cos() of float have a straight line for all but huge values.
template <typename F>
struct Sines {
  static constexpr bool kAny = false;
};
template <>
struct Sines<unary::Sin<float>> {
  static constexpr bool kAny = true;
  static float near_value(float x) { return math::near_sin(x); }
  static float near_gradient(float grad, float x) { return grad * math::near_cos(x); }
};
template <>
struct Sines<unary::Cos<float>> {
  static constexpr bool kAny = true;
  static float near_value(float x) { return math::near_cos(x); }
  static float near_gradient(float grad, float x) { return -grad * math::near_sin(x); }
};

/// Functions of double have a straight line for all but huge or special arguments; the others are computed one by one.
template <typename F>
struct Line {
  static constexpr bool kAny = false;
};
template <>
struct Line<unary::Exp<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double x) { return math::lines::is_near_exp(x); }
  static double value(double x) { return math::lines::exp_of_near(x, 0); }
};
template <>
struct Line<unary::Log<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double x) { return math::lines::is_near_log(x); }
  static double value(double x) { return math::lines::log_of_near(x); }
};
template <>
struct Line<unary::Sigmoid<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double x) { return math::lines::is_near_exp(x); }
  static double value(double x) { return math::lines::sigmoid_of_near(x); }
};
template <>
struct Line<unary::Silu<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double x) { return math::lines::is_near_exp(x); }
  static double value(double x) { return x * math::lines::sigmoid_of_near(x); }
  static double slope(double x) {
    const double s = math::lines::sigmoid_of_near(x);
    return s * std::fma(x, 1 - s, 1.0);
  }
};
template <>
struct Line<unary::Tanh<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double x) { return math::lines::is_near_tanh(x); }
  static double value(double x) { return math::lines::tanh_of_near(x); }
};
template <>
struct Line<unary::Sin<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double x) { return math::lines::is_near_angle(x); }
  static double value(double x) { return x == 0 ? x : math::lines::sine_of_near(x, 0); }
  static double slope(double x) { return math::lines::sine_of_near(x, 1); }
};
template <>
struct Line<unary::Cos<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double x) { return math::lines::is_near_angle(x); }
  static double value(double x) { return math::lines::sine_of_near(x, 1); }
  static double slope(double x) { return x == 0 ? -x : -math::lines::sine_of_near(x, 0); }
};
template <>
struct Line<unary::Erf<double>> {
  static constexpr bool kAny = true;
  static bool is_near(double x) { return math::lines::is_near_erf(x); }
  static double value(double x) { return math::lines::erf_of_near(x); }
};
template <>
struct Line<unary::Gelu<double>> {
  static constexpr bool kAny = true;
  static constexpr double kRootHalf = 0.7071067811865476;
  static bool is_near(double x) { return math::lines::is_near_erf(x * kRootHalf); }
  static double cumulative(double x) { return std::fma(0.5, math::lines::erf_of_near(x * kRootHalf), 0.5); }
  static double value(double x) { return x * cumulative(x); }
  static double slope(double x) {
    const auto [erf, gauss] = math::lines::erf_and_gauss_of_near(x * kRootHalf);  // gauss: exp(-x^2 / 2)
    return std::fma(x, 0.3989422804014327 * gauss, std::fma(0.5, erf, 0.5));
  }
};

/// By the line where it holds, by `other` elsewhere. Arguments beyond it are replaced, so that no line meets them, and
/// out may be x.
template <typename Near, typename Value, typename Other, typename Finish>
[[gnu::flatten]] void apply_line(const double* x, std::int64_t count, Near&& holds, Value value, Other&& other,
                                 Finish&& finish) {
  double near[kRowChunk];
  for (std::int64_t begin = 0; begin < count; begin += kRowChunk) {
    const std::int64_t n = std::min(kRowChunk, count - begin);
    std::int64_t far = 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const bool is_near = holds(x[begin + i]);
      near[i] = is_near ? x[begin + i] : 1.0;
      far |= is_near ? 0 : 1;
    }
    cpu::write_row(near, n,
                   [from = static_cast<const double*>(near), value](std::int64_t i) { return value(from[i]); });
    if (far != 0)
      for (std::int64_t i = 0; i < n; ++i)
        if (!holds(x[begin + i])) near[i] = other(begin + i);
    finish(begin, n, near);
  }
}

template <typename C>
bool all_near(const C* x, std::int64_t count) {
  std::int32_t far = 0;
  for (std::int64_t i = 0; i < count; ++i) far |= math::is_near(static_cast<float>(x[i])) ? 0 : 1;
  return far == 0;
}

template <typename C>
Row<C> row_function(UnaryOp op) {
  Row<C> row = nullptr;
  unary::visit<C>(op, [&]<typename F>() {
    row = [](UnaryParams params, const C* x, C* out, std::int64_t count) {
      const F f(params);
      if constexpr (Sines<F>::kAny)
        if (all_near(x, count)) {
          return cpu::write_row(out, count, [x](std::int64_t i) { return Sines<F>::near_value(x[i]); });
        }
      const auto finish = [&](std::int64_t begin, std::int64_t n, const double* values) {
        if constexpr (std::is_same_v<C, double>) std::copy_n(values, n, out + begin);
      };
      if constexpr (Line<F>::kAny)
        return apply_line(
            x, count, Line<F>::is_near, [](double at) { return Line<F>::value(at); },
            [&](std::int64_t i) { return f.value(x[i]); }, finish);
      if constexpr (std::is_same_v<F, unary::Pow<double>>)
        return apply_line(
            x, count, [&](double at) { return math::lines::is_near_pow(at, f.exponent); },
            [f](double at) { return math::lines::pow_of_near(at, f.exponent); },
            [&](std::int64_t i) { return f.value(x[i]); }, finish);
      cpu::write_row(out, count, [x, f](std::int64_t i) { return f.value(x[i]); });
    };
  });
  LOCKSTEP_ASSERT(row, "unary operation {} has no {} kernel", static_cast<int>(op), name(dtype_of<C>));
  return row;
}

template <typename C>
BackwardRow<C> backward_row_function(UnaryOp op) {
  BackwardRow<C> row = nullptr;
  unary::visit<C>(op, [&]<typename F>() {
    row = [](UnaryParams params, const C* grad, const C* saved, C* out, std::int64_t count) {
      const F f(params);
      if constexpr (Sines<F>::kAny)
        if (all_near(saved, count)) {
          return cpu::write_row(out, count,
                                [grad, saved](std::int64_t i) { return Sines<F>::near_gradient(grad[i], saved[i]); });
        }
      const auto finish = [&](std::int64_t begin, std::int64_t n, const double* slopes) {
        if constexpr (std::is_same_v<C, double>)
          for (std::int64_t i = 0; i < n; ++i) out[begin + i] = grad[begin + i] * slopes[i];
      };
      if constexpr (requires { Line<F>::slope(1.0); })
        return apply_line(
            saved, count, Line<F>::is_near, [](double at) { return Line<F>::slope(at); },
            [&](std::int64_t i) { return f.gradient(1.0, saved[i]); }, finish);
      if constexpr (std::is_same_v<F, unary::Pow<double>>)
        if (f.exponent != 0)
          return apply_line(
              saved, count, [&](double at) { return math::lines::is_near_pow(at, f.exponent - 1); },
              [f](double at) { return f.exponent * math::lines::pow_of_near(at, f.exponent - 1); },
              [&](std::int64_t i) { return f.gradient(1.0, saved[i]); }, finish);
      cpu::write_row(out, count, [grad, saved, f](std::int64_t i) { return f.gradient(grad[i], saved[i]); });
    };
  });
  return row;
}

template <typename C>
void run(UnaryOp op, UnaryParams params, const Tensor& x, const Tensor& out) {
  const Row<C> apply = row_function<C>(op);
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
  cpu::for_each_row(cpu::plan_loop<2>(out.sizes(), {&out, &x}),
                    [&](const auto& offset, const auto& stride, std::int64_t length) {
                      row(offset[0], offset[1], stride[0], stride[1], length);
                    });
}

template <typename C>
void run_backward(UnaryOp op, UnaryParams params, const Tensor& grad, const Tensor& saved, const Tensor& out) {
  const BackwardRow<C> apply = backward_row_function<C>(op);
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
  cpu::for_each_row(cpu::plan_loop<3>(out.sizes(), {&out, &grad, &saved}),
                    [&](const auto& offset, const auto& stride, std::int64_t length) {
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

}  // namespace lockstep
