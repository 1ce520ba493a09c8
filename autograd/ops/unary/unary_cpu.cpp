#include <algorithm>
#include <type_traits>

#include "lockstep/autograd/ops/unary/unary_functors.h"
#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/cpu/write_row.h"
#include "lockstep/core/double_math_inverse_lines.h"
#include "lockstep/core/double_math_lines.h"
#include "lockstep/core/elementwise.h"

namespace lockstep {
namespace {

using cpu::kRowChunk;

template <typename C>
using Row = void (*)(UnaryParams params, const C* x, C* out, std::int64_t count);
template <typename C>
using BackwardRow = void (*)(UnaryParams params, const C* grad, const C* saved, C* out, std::int64_t count);

/// sin(), cos() and tan() of float have a straight line for all but huge values.
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
template <>
struct Sines<unary::Tan<float>> {
  static constexpr bool kAny = true;
  static float near_value(float x) { return math::near_tan(x); }
};

/// Functions of double have a straight line for all but huge or special arguments; the others are computed one by one.
/// A line is made from the functor, whose numbers it may need. It is inlined by force: a call in a loop would keep it
/// from being vectorised, and compilers find the longer lines too long.
template <typename F>
struct Line {
  static constexpr bool kAny = false;
};
struct AnyLine {
  static constexpr bool kAny = true;
  AnyLine() = default;
  template <typename F>
  explicit AnyLine(const F&) {}
};
struct LineOfExp : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_exp(x); }
};
template <>
struct Line<unary::Exp<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) { return math::lines::exp_of_near(x, 0); }
};
template <>
struct Line<unary::Expm1<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) { return math::lines::expm1_of_near(x); }
};
template <>
struct Line<unary::Log<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_log(x); }
  [[gnu::always_inline]] static double value(double x) { return math::lines::log_of_near(x); }
};
template <>
struct Line<unary::Log1p<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_log1p(x); }
  [[gnu::always_inline]] static double value(double x) { return math::lines::log1p_of_near(x); }
};
template <>
struct Line<unary::Sigmoid<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) { return math::lines::sigmoid_of_near(x); }
};
template <>
struct Line<unary::Silu<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) { return x * math::lines::sigmoid_of_near(x); }
  [[gnu::always_inline]] static double slope(double x) {
    const double s = math::lines::sigmoid_of_near(x);
    return s * std::fma(x, 1 - s, 1.0);
  }
};
template <>
struct Line<unary::LogSigmoid<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) {
    return (x < 0 ? x : 0.0) - math::lines::log_of_one_and_exp(x);
  }
  [[gnu::always_inline]] static double slope(double x) { return math::lines::sigmoid_of_near(-x); }
};
template <>
struct Line<unary::Softplus<double>> {
  static constexpr bool kAny = true;
  double beta, threshold;
  explicit Line(const unary::Softplus<double>& f) : beta(f.beta), threshold(f.threshold) {}
  bool is_near(double x) const { return math::lines::is_near_exp(beta * x); }
  [[gnu::always_inline]] double value(double x) const {
    const double z = beta * x;
    const double soft = ((z > 0 ? z : 0.0) + math::lines::log_of_one_and_exp(z)) / beta;
    return z > threshold ? x : soft;
  }
  [[gnu::always_inline]] double slope(double x) const {
    return beta * x > threshold ? 1.0 : math::lines::sigmoid_of_near(beta * x);
  }
};
template <>
struct Line<unary::Tanh<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_tanh(x); }
  [[gnu::always_inline]] static double value(double x) { return math::lines::tanh_of_near(x); }
};
struct LineOfAngle : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_angle(x); }
};
template <>
struct Line<unary::Sin<double>> : LineOfAngle {
  using LineOfAngle::LineOfAngle;
  [[gnu::always_inline]] static double value(double x) { return x == 0 ? x : math::lines::sine_of_near(x, 0); }
  [[gnu::always_inline]] static double slope(double x) { return math::lines::sine_of_near(x, 1); }
};
template <>
struct Line<unary::Cos<double>> : LineOfAngle {
  using LineOfAngle::LineOfAngle;
  [[gnu::always_inline]] static double value(double x) { return math::lines::sine_of_near(x, 1); }
  [[gnu::always_inline]] static double slope(double x) { return x == 0 ? -x : -math::lines::sine_of_near(x, 0); }
};
template <>
struct Line<unary::Tan<double>> : LineOfAngle {
  using LineOfAngle::LineOfAngle;
  [[gnu::always_inline]] static double value(double x) { return x == 0 ? x : math::lines::tan_of_near(x); }
};
template <>
struct Line<unary::Atan<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return x == x; }
  [[gnu::always_inline]] static double value(double x) { return math::lines::atan_of_near(x); }
};
struct LineOfSine : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return std::fabs(x) <= 1; }
};
template <>
struct Line<unary::Asin<double>> : LineOfSine {
  using LineOfSine::LineOfSine;
  [[gnu::always_inline]] static double value(double x) { return math::lines::asin_of_near(x); }
};
template <>
struct Line<unary::Acos<double>> : LineOfSine {
  using LineOfSine::LineOfSine;
  [[gnu::always_inline]] static double value(double x) { return math::lines::acos_of_near(x); }
};
template <>
struct Line<unary::Erf<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_erf(x); }
  [[gnu::always_inline]] static double value(double x) { return math::lines::erf_of_near(x); }
  [[gnu::always_inline]] static double slope(double x) {
    return 1.1283791670955126 * math::lines::exp_of_near(-x * x, 0);
  }
};
template <>
struct Line<unary::Gelu<double>> : AnyLine {
  using AnyLine::AnyLine;
  static constexpr double kRootHalf = 0.7071067811865476;
  static bool is_near(double x) { return math::lines::is_near_erf(x * kRootHalf); }
  [[gnu::always_inline]] static double cumulative(double x) {
    return std::fma(0.5, math::lines::erf_of_near(x * kRootHalf), 0.5);
  }
  [[gnu::always_inline]] static double value(double x) { return x * cumulative(x); }
  [[gnu::always_inline]] static double slope(double x) {
    const auto [erf, gauss] = math::lines::erf_and_gauss_of_near(x * kRootHalf);  // gauss: exp(-x^2 / 2)
    return std::fma(x, 0.3989422804014327 * gauss, std::fma(0.5, erf, 0.5));
  }
};
template <>
struct Line<unary::Pow<double>> {
  static constexpr bool kAny = true;
  double exponent;
  explicit Line(const unary::Pow<double>& f) : exponent(f.exponent) {}
  bool is_near(double x) const { return math::lines::is_near_pow(x, exponent); }
  [[gnu::always_inline]] double value(double x) const { return math::lines::pow_of_near(x, exponent); }
};
/// Of a power's gradient.
struct SlopeOfPow {
  double exponent;
  bool is_near(double x) const { return math::lines::is_near_pow(x, exponent - 1); }
  [[gnu::always_inline]] double slope(double x) const { return exponent * math::lines::pow_of_near(x, exponent - 1); }
};

/// near[i] = value(x[i]) where the line holds, anything elsewhere: arguments beyond it are replaced, so that no line
/// meets them. True if there were any. In two loops: in one the compiler would compute the line of what replaces them
/// beforehand, and branch.
template <typename L, typename Value>
bool write_near(const double* x, std::int64_t count, double* near, L line, Value value) {
  const bool far = cpu::by_widest_vectors([=] {
    std::int64_t beyond = 0;
    for (std::int64_t i = 0; i < count; ++i) {
      const bool is_near = line.is_near(x[i]);
      near[i] = is_near ? x[i] : 1.0;
      beyond |= is_near ? 0 : 1;
    }
    return beyond != 0;
  });
  cpu::write_row(
      near, count, [ from = static_cast<const double*>(near), line,
                     value ](std::int64_t i) __attribute__((always_inline)) { return value(line, from[i]); });
  return far;
}

/// By the line where it holds, by `other` elsewhere. out may be x.
template <typename L, typename Value, typename Other, typename Finish>
void apply_line(const double* x, std::int64_t count, L line, Value value, Other&& other, Finish&& finish) {
  double near[kRowChunk];
  for (std::int64_t begin = 0; begin < count; begin += kRowChunk) {
    const std::int64_t n = std::min(kRowChunk, count - begin);
    if (write_near(x + begin, n, near, line, value))
      for (std::int64_t i = 0; i < n; ++i)
        if (!line.is_near(x[begin + i])) near[i] = other(begin + i);
    finish(begin, n, near);
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
            x, count, Line<F>(f), ValueOf{}, [&](std::int64_t i) { return f.value(x[i]); }, finish);
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
      if constexpr (requires { Sines<F>::near_gradient(grad[0], saved[0]); })
        if (all_near(saved, count)) {
          return cpu::write_row(out, count,
                                [grad, saved](std::int64_t i) { return Sines<F>::near_gradient(grad[i], saved[i]); });
        }
      const auto finish = [&](std::int64_t begin, std::int64_t n, const double* slopes) {
        if constexpr (std::is_same_v<C, double>)
          for (std::int64_t i = 0; i < n; ++i) out[begin + i] = grad[begin + i] * slopes[i];
      };
      const auto other = [&](std::int64_t i) { return f.gradient(1.0, saved[i]); };
      if constexpr (requires(const Line<F>& line) { line.slope(1.0); })
        return apply_line(saved, count, Line<F>(f), SlopeOf{}, other, finish);
      if constexpr (std::is_same_v<F, unary::Pow<double>>)
        if (f.exponent != 0) return apply_line(saved, count, SlopeOfPow{f.exponent}, SlopeOf{}, other, finish);
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

}  // namespace lockstep
