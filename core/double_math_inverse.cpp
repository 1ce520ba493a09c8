// More of double_math.h, made of the functions in double_math.cpp.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "lockstep/core/double_math.h"
#include "lockstep/core/double_math_inverse_lines.h"

namespace lockstep::math {
namespace {

/// log(x) in units of log(2), whole powers exactly: x = m 2^n with m in [sqrt(1/2), sqrt(2)).
double log2_of_positive(double x) {
  std::int64_t power = 0;
  if (x < std::numeric_limits<double>::min()) {
    x *= 0x1p54;
    power = -54;
  }
  const auto bits = std::bit_cast<std::uint64_t>(x);
  power += static_cast<std::int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0x000fffffffffffffu) | 0x3ff0000000000000u);
  if (m > std::numbers::sqrt2) {
    m *= 0.5;
    ++power;
  }
  return static_cast<double>(power) + portable_log(m) * std::numbers::log2e;
}

}  // namespace

double portable_tan(double x) {
  return portable_sin(x) / portable_cos(x);
}

double portable_sinh(double x) {
  const double a = std::fabs(x);
  if (a > 22) {
    const double root = portable_exp(0.5 * a);
    return std::copysign(0.5 * root * root, x);
  }
  const double e = portable_expm1(a);
  return std::copysign(0.5 * (e + e / (e + 1)), x);
}

double portable_cosh(double x) {
  const double a = std::fabs(x);
  if (a > 22) {
    const double root = portable_exp(0.5 * a);
    return 0.5 * root * root;
  }
  const double e = portable_exp(a);
  return 0.5 * (e + 1 / e);
}

double portable_log2(double x) {
  if (!(x > 0) || x == std::numeric_limits<double>::infinity()) return portable_log(x);
  return log2_of_positive(x);
}

double portable_log10(double x) {
  if (!(x > 0) || x == std::numeric_limits<double>::infinity()) return portable_log(x);
  const double y = portable_log(x) * std::numbers::log10e;
  const double whole = std::floor(y + 0.5);
  if (whole < 0 || whole > 22 || std::fabs(y - whole) > 1e-13 * (whole + 1)) return y;
  double power = 1;  // exact up to 10^22
  for (int i = 0; i < static_cast<int>(whole); ++i) power *= 10;
  return power == x ? whole : y;
}

double portable_atan(double x) {
  return std::isnan(x) ? x : lines::atan_of_near(x);
}

double portable_asin(double x) {
  return std::fabs(x) <= 1 ? lines::asin_of_near(x) : std::numeric_limits<double>::quiet_NaN();
}

double portable_acos(double x) {
  return std::fabs(x) <= 1 ? lines::acos_of_near(x) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace lockstep::math
