#pragma once

// The functions of the unary family that have straight lines, which vectorise, for most arguments. For unary_cpu.cpp.

#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/unary/unary_functors.h"
#include "lockstep/core/double_math_inverse_lines.h"
#include "lockstep/core/double_math_lines.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::unary {

struct LogarithmOfNear {
  [[gnu::always_inline]] double operator()(double x) const { return math::lines::log_of_near(x); }
};
/// log_gamma(x) for normal, finite x > 0, with its bits.
[[gnu::always_inline]] inline double log_gamma_of_near(double x) {
  const double value = log_gamma_of_positive(x, LogarithmOfNear());
  return (x == 1.0) | (x == 2.0) ? 0.0 : value;
}

/// Some functions of float have a straight line for arguments that are near, and one that takes longer for `Wider`.
template <typename F>
struct NearLine {
  static constexpr bool kAny = false;
};
struct NearAngle {
  static constexpr bool kAny = true;
  static bool is_near(float x) { return math::is_near(x); }
};
template <>
struct NearLine<Sin<float>> : NearAngle {
  [[gnu::always_inline]] static float value(float x) { return math::near_sin(x); }
  [[gnu::always_inline]] static float gradient(float grad, float x) { return grad * math::near_cos(x); }
};
template <>
struct NearLine<Cos<float>> : NearAngle {
  [[gnu::always_inline]] static float value(float x) { return math::near_cos(x); }
  [[gnu::always_inline]] static float gradient(float grad, float x) { return -grad * math::near_sin(x); }
};
template <>
struct NearLine<Tan<float>> : NearAngle {
  [[gnu::always_inline]] static float value(float x) { return math::near_tan(x); }
};
/// The same for finite x that is no whole number, as log_gamma() has it; positive ones may be whole.
[[gnu::always_inline]] inline double log_gamma_of_fraction(double x) {
  const double whole = log_gamma_of_positive(x > 0.0 ? x : 1.0 - x, LogarithmOfNear());
  const double sine = math::lines::sine_of_near(kPi * from_whole(x), 0);
  const double reflected = math::lines::log_of_near(kPi / std::fabs(sine)) - whole;
  return (x == 1.0) | (x == 2.0) ? 0.0 : x > 0.0 ? whole : reflected;
}
/// Arguments some of which are negative.
struct LogGammaOfFractions {
  static bool is_near(float x) {
    return (std::fabs(x) < std::numeric_limits<float>::infinity()) & ((x > 0.0f) | (x != std::floor(x)));
  }
  [[gnu::always_inline]] static float value(float x) {
    return static_cast<float>(log_gamma_of_fraction(static_cast<double>(x)));
  }
};
template <>
struct NearLine<LogGamma<float>> {
  using Wider = LogGammaOfFractions;
  static constexpr bool kAny = true;
  static bool is_near(float x) { return (x > 0.0f) & (x < std::numeric_limits<float>::infinity()); }
  [[gnu::always_inline]] static float value(float x) {
    return static_cast<float>(log_gamma_of_near(static_cast<double>(x)));
  }
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
struct Line<Exp<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) { return math::lines::exp_of_near(x, 0); }
};
template <>
struct Line<Expm1<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) { return math::lines::expm1_of_near(x); }
};
template <>
struct Line<Log<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_log(x); }
  [[gnu::always_inline]] static double value(double x) { return math::lines::log_of_near(x); }
};
template <>
struct Line<Log1p<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_log1p(x); }
  [[gnu::always_inline]] static double value(double x) { return math::lines::log1p_of_near(x); }
};
template <>
struct Line<Sigmoid<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) { return math::lines::sigmoid_of_near(x); }
};
template <>
struct Line<Silu<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) { return x * math::lines::sigmoid_of_near(x); }
  [[gnu::always_inline]] static double slope(double x) {
    const double s = math::lines::sigmoid_of_near(x);
    return s * std::fma(x, 1 - s, 1.0);
  }
};
template <>
struct Line<LogSigmoid<double>> : LineOfExp {
  using LineOfExp::LineOfExp;
  [[gnu::always_inline]] static double value(double x) {
    return (x < 0 ? x : 0.0) - math::lines::log_of_one_and_exp(x);
  }
  [[gnu::always_inline]] static double slope(double x) { return math::lines::sigmoid_of_near(-x); }
};
template <>
struct Line<Softplus<double>> {
  static constexpr bool kAny = true;
  double beta, threshold;
  explicit Line(const Softplus<double>& f) : beta(f.beta), threshold(f.threshold) {}
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
struct Line<Tanh<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_tanh(x); }
  [[gnu::always_inline]] static double value(double x) { return math::lines::tanh_of_near(x); }
};
struct LineOfAngle : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_angle(x); }
};
template <>
struct Line<Sin<double>> : LineOfAngle {
  using LineOfAngle::LineOfAngle;
  [[gnu::always_inline]] static double value(double x) { return x == 0 ? x : math::lines::sine_of_near(x, 0); }
  [[gnu::always_inline]] static double slope(double x) { return math::lines::sine_of_near(x, 1); }
};
template <>
struct Line<Cos<double>> : LineOfAngle {
  using LineOfAngle::LineOfAngle;
  [[gnu::always_inline]] static double value(double x) { return math::lines::sine_of_near(x, 1); }
  [[gnu::always_inline]] static double slope(double x) { return x == 0 ? -x : -math::lines::sine_of_near(x, 0); }
};
template <>
struct Line<LogGamma<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_log(x); }
  [[gnu::always_inline]] static double value(double x) { return log_gamma_of_near(x); }
};
template <>
struct Line<Tan<double>> : LineOfAngle {
  using LineOfAngle::LineOfAngle;
  [[gnu::always_inline]] static double value(double x) { return x == 0 ? x : math::lines::tan_of_near(x); }
};
template <>
struct Line<Atan<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return x == x; }
  [[gnu::always_inline]] static double value(double x) { return math::lines::atan_of_near(x); }
};
struct LineOfSine : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return std::fabs(x) <= 1; }
};
template <>
struct Line<Asin<double>> : LineOfSine {
  using LineOfSine::LineOfSine;
  [[gnu::always_inline]] static double value(double x) { return math::lines::asin_of_near(x); }
};
template <>
struct Line<Acos<double>> : LineOfSine {
  using LineOfSine::LineOfSine;
  [[gnu::always_inline]] static double value(double x) { return math::lines::acos_of_near(x); }
};
template <>
struct Line<Erf<double>> : AnyLine {
  using AnyLine::AnyLine;
  static bool is_near(double x) { return math::lines::is_near_erf(x); }
  [[gnu::always_inline]] static double value(double x) { return math::lines::erf_of_near(x); }
  [[gnu::always_inline]] static double slope(double x) {
    return 1.1283791670955126 * math::lines::exp_of_near(-x * x, 0);
  }
};
template <>
struct Line<Gelu<double>> : AnyLine {
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
struct Line<Pow<double>> {
  static constexpr bool kAny = true;
  double exponent;
  explicit Line(const Pow<double>& f) : exponent(f.exponent) {}
  bool is_near(double x) const { return math::lines::is_near_pow(x, exponent); }
  [[gnu::always_inline]] double value(double x) const { return math::lines::pow_of_near(x, exponent); }
};
/// Of a power's gradient.
struct SlopeOfPow {
  double exponent;
  bool is_near(double x) const { return math::lines::is_near_pow(x, exponent - 1); }
  [[gnu::always_inline]] double slope(double x) const { return exponent * math::lines::pow_of_near(x, exponent - 1); }
};

}  // namespace lockstep::unary
