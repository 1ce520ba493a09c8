#include "lockstep/core/double_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep::math {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Values spread over [from, to], the same ones each time.
template <typename Function, typename Reference>
double worst_ulp(Function f, Reference reference, double from, double to) {
  std::uint64_t state = 1;
  double worst = 0;
  for (int i = 0; i < 20'000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double x = from + (to - from) * static_cast<double>(state >> 11) * 0x1p-53;
    const long double expected = reference(static_cast<long double>(x));
    const double size = std::fabs(static_cast<double>(expected));
    const double ulp = std::nextafter(size, kInfinity) - size;
    worst = std::max(worst, static_cast<double>(std::fabs(static_cast<long double>(f(x)) - expected)) / ulp);
  }
  return worst;
}

TEST(DoubleMath, LogarithmsOfPowersAreExact) {
  for (int n = -1000; n <= 1000; ++n) EXPECT_EQ(portable_log2(std::ldexp(1.0, n)), n);
  double power = 1.0;
  for (int n = 0; n <= 22; ++n, power *= 10.0) EXPECT_EQ(portable_log10(power), n);
  EXPECT_EQ(portable_log2(0.0), -kInfinity);
  EXPECT_EQ(portable_log10(0.0), -kInfinity);
  EXPECT_TRUE(std::isnan(portable_log2(-1.0)));
  EXPECT_TRUE(std::isnan(portable_asin(1.5)));
  EXPECT_EQ(portable_atan(kInfinity), std::atan(kInfinity));
  EXPECT_EQ(portable_acos(-1.0), std::acos(-1.0));
}

TEST(DoubleMath, IsNearLongDouble) {
  if (std::numeric_limits<long double>::digits < 64) GTEST_SKIP() << "long double is no wider than double here";
  const auto exp = [](long double x) { return std::exp(x); };
  EXPECT_LT(worst_ulp(portable_exp, exp, -700, 700), 1.5);
  EXPECT_LT(worst_ulp(portable_exp, exp, -1, 1), 1.5);
  EXPECT_LT(worst_ulp(
                portable_expm1, [](long double x) { return std::expm1(x); }, -3, 3),
            3);
  EXPECT_LT(worst_ulp(
                portable_log, [](long double x) { return std::log(x); }, 1e-300, 5),
            1.5);
  EXPECT_LT(worst_ulp(
                portable_log, [](long double x) { return std::log(x); }, 0.7, 1.5),
            1.5);
  EXPECT_LT(worst_ulp(
                portable_log1p, [](long double x) { return std::log1p(x); }, -0.99, 4),
            1.5);
  EXPECT_LT(worst_ulp(
                portable_tanh, [](long double x) { return std::tanh(x); }, -4, 4),
            4);
  EXPECT_LT(worst_ulp(
                portable_erf, [](long double x) { return std::erf(x); }, -6, 6),
            8);
  EXPECT_LT(worst_ulp(
                portable_sin, [](long double x) { return std::sin(x); }, -100, 100),
            1.5);
  EXPECT_LT(worst_ulp(
                portable_cos, [](long double x) { return std::cos(x); }, -100, 100),
            1.5);
  EXPECT_LT(worst_ulp(
                portable_tan, [](long double x) { return std::tan(x); }, -1.5, 1.5),
            4);
  EXPECT_LT(worst_ulp(
                portable_sinh, [](long double x) { return std::sinh(x); }, -5, 5),
            6);
  EXPECT_LT(worst_ulp(
                portable_sinh, [](long double x) { return std::sinh(x); }, -700, 700),
            6);
  EXPECT_LT(worst_ulp(
                portable_cosh, [](long double x) { return std::cosh(x); }, -5, 5),
            4);
  EXPECT_LT(worst_ulp(
                portable_log2, [](long double x) { return std::log2(x); }, 1e-300, 1e+300),
            4);
  EXPECT_LT(worst_ulp(
                portable_log2, [](long double x) { return std::log2(x); }, 0.5, 2.5),
            4);
  EXPECT_LT(worst_ulp(
                portable_log10, [](long double x) { return std::log10(x); }, 1e-300, 1e+300),
            8);
  EXPECT_LT(worst_ulp(
                portable_log10, [](long double x) { return std::log10(x); }, 0.5, 2.5),
            8);
  EXPECT_LT(worst_ulp(
                portable_atan, [](long double x) { return std::atan(x); }, -1, 1),
            4);
  EXPECT_LT(worst_ulp(
                portable_atan, [](long double x) { return std::atan(x); }, -40, 40),
            4);
  EXPECT_LT(worst_ulp(
                portable_asin, [](long double x) { return std::asin(x); }, -1, 1),
            8);
  EXPECT_LT(worst_ulp(
                portable_acos, [](long double x) { return std::acos(x); }, -1, 1),
            8);
  // Beyond what three parts of pi / 2 reduce.
  for (const double largest : {1e6, 1e15, 1e50, std::numeric_limits<double>::max() / 2}) {
    SCOPED_TRACE(largest);
    EXPECT_LT(worst_ulp(
                  portable_sin, [](long double x) { return std::sin(x); }, -largest, largest),
              1.5);
    EXPECT_LT(worst_ulp(
                  portable_cos, [](long double x) { return std::cos(x); }, -largest, largest),
              1.5);
  }
  EXPECT_LT(worst_ulp([](double x) { return portable_pow(x, 3.7); },
                      [](long double x) { return std::pow(x, static_cast<long double>(3.7)); }, 0, 10),
            1.5);
}

TEST(DoubleMath, Ends) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const auto f : {portable_exp, portable_expm1, portable_log, portable_log1p, portable_tanh, portable_erf,
                       portable_sin, portable_cos})
    EXPECT_TRUE(std::isnan(f(nan)));
  EXPECT_EQ(portable_exp(1000), kInfinity);
  EXPECT_EQ(portable_exp(-1000), 0);
  EXPECT_EQ(portable_exp(-kInfinity), 0);
  EXPECT_EQ(portable_exp(-745), std::numeric_limits<double>::denorm_min());
  EXPECT_EQ(portable_log(0), -kInfinity);
  EXPECT_TRUE(std::isnan(portable_log(-1)));
  EXPECT_EQ(portable_log(1), 0);
  EXPECT_EQ(portable_log1p(-1), -kInfinity);
  EXPECT_EQ(portable_tanh(kInfinity), 1);
  EXPECT_EQ(portable_erf(-kInfinity), -1);
  EXPECT_TRUE(std::signbit(portable_tanh(-0.0)));
  EXPECT_EQ(portable_cos(0), 1);
  EXPECT_TRUE(std::isnan(portable_sin(kInfinity)));
}

// The double that comes nearest to a multiple of pi / 2 (Muller et al., "Handbook of Floating-Point Arithmetic",
// table 10.2) loses 61 digits to it; the others lie at the ends of the exponent and of the reduction by parts.
TEST(DoubleMath, AnglesNearMultiplesOfHalfPi) {
  if (std::numeric_limits<long double>::digits < 64) GTEST_SKIP() << "long double is no wider than double here";
  const double largest = std::numeric_limits<double>::max();
  for (const double x : {0x1.6ac5b262ca1ffp+849, 0x1.921fb54442d18p+20, largest, std::nextafter(1e5, kInfinity), 0x1p17,
                         0x1p52, 0x1p53, 0x1p54, 0x1p55, 0x1p56, 0x1p1023})
    for (const double angle : {x, -x}) {
      SCOPED_TRACE(angle);
      EXPECT_DOUBLE_EQ(portable_sin(angle), static_cast<double>(std::sin(static_cast<long double>(angle))));
      EXPECT_DOUBLE_EQ(portable_cos(angle), static_cast<double>(std::cos(static_cast<long double>(angle))));
    }
}

TEST(DoubleMath, PowersAreThoseOfC) {
  const double values[] = {-kInfinity, -3, -2.5, -1, -0.5, -0.0, 0.0, 0.5, 1, 2, 3, 10, kInfinity};
  for (const double x : values)
    for (const double y : values) {
      const double expected = std::pow(x, y), found = portable_pow(x, y);
      SCOPED_TRACE(x);
      SCOPED_TRACE(y);
      if (std::isnan(expected))
        EXPECT_TRUE(std::isnan(found));
      else if (expected == 0 || std::isinf(expected))
        EXPECT_TRUE(found == expected && std::signbit(found) == std::signbit(expected)) << found;
      else
        EXPECT_DOUBLE_EQ(found, expected);
    }
}

}  // namespace
}  // namespace lockstep::math
