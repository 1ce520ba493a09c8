// More of double_math.h, made of the functions in double_math.cpp.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "lockstep/core/double_math.h"

namespace lockstep::math {
namespace {

// atan(k / 16), k = 0 ... 16, as a sum of two doubles.
constexpr double kAtanHigh[] = {0x0.0p+0,
                                0x1.ff55bb72cfdeap-5,
                                0x1.fd5ba9aac2f6ep-4,
                                0x1.7b97b4bce5b02p-3,
                                0x1.f5b75f92c80ddp-3,
                                0x1.362773707ebccp-2,
                                0x1.6f61941e4def1p-2,
                                0x1.a64eec3cc23fdp-2,
                                0x1.dac670561bb4fp-2,
                                0x1.0657e94db30d0p-1,
                                0x1.1e00babdefeb4p-1,
                                0x1.345f01cce37bbp-1,
                                0x1.4978fa3269ee1p-1,
                                0x1.5d58987169b18p-1,
                                0x1.700a7c5784634p-1,
                                0x1.819d0b7158a4dp-1,
                                0x1.921fb54442d18p-1};
constexpr double kAtanLow[] = {0x0.0p+0,
                               -0x1.c934d86d23f1dp-60,
                               -0x1.cd37686760c17p-59,
                               0x1.347b0b4f881cap-58,
                               0x1.8ab6e3cf7afbdp-57,
                               -0x1.963a544b672d8p-57,
                               -0x1.c63aae6f6e918p-56,
                               -0x1.24dec1b50b7ffp-56,
                               0x1.a2b7f222f65e2p-56,
                               -0x1.d5b495f6349e6p-56,
                               -0x1.928df287a668fp-58,
                               0x1.1021137c71102p-55,
                               0x1.2419a87f2a458p-56,
                               0x1.0028e4bc5e7cap-57,
                               -0x1.8c34d25aadef6p-56,
                               -0x1.bf76229d3b917p-56,
                               0x1.1a62633145c07p-55};
constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0, kHalfPiLow = 0x1.1a62633145c07p-54;

/// atan(a) for a in [0, 1].
double atan_to_one(double a) {
  const double nearest = std::floor(a * 16 + 0.5);
  const double center = nearest / 16;
  const double t = (a - center) / std::fma(a, center, 1.0);  // |t| <= 1 / 32
  const double z = t * t;
  double p = 1.0 / 13;
  p = std::fma(p, z, -1.0 / 11);
  p = std::fma(p, z, 1.0 / 9);
  p = std::fma(p, z, -1.0 / 7);
  p = std::fma(p, z, 1.0 / 5);
  p = std::fma(p, z, -1.0 / 3);
  const auto k = static_cast<int>(nearest);
  return kAtanHigh[k] + (kAtanLow[k] + std::fma(t * z, p, t));
}

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
  const double a = std::fabs(x);
  if (!(a > 1)) return std::isnan(x) ? x : std::copysign(atan_to_one(a), x);
  return std::copysign(kHalfPiHigh - (atan_to_one(1 / a) - kHalfPiLow), x);
}

double portable_asin(double x) {
  return portable_atan(x / std::sqrt((1 - x) * (1 + x)));
}

double portable_acos(double x) {
  return 2 * portable_atan(std::sqrt((1 - x) / (1 + x)));
}

}  // namespace lockstep::math
