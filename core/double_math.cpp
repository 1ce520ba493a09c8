#include "lockstep/core/double_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>

#include "lockstep/core/double_math_lines.h"

namespace lockstep::math {
namespace {

using lines::expm1_of_small;
using lines::kLn2High;
using lines::kLn2Low;
using lines::Sum;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// x * 2^n, rounded once unless the result is subnormal.
double scale(double x, std::int64_t n) {
  const auto power = [](std::int64_t e) { return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52); };
  if (n > 1023) return x * power(1023) * power(n - 1023);
  if (n < -1022) return x * power(-969) * power(n + 969);
  return x * power(n);
}

// exp(high + low), |low| much less than |high|.
double exp_of_sum(double high, double low) {
  if (!(high <= 709.8)) return std::isnan(high) ? high : kInfinity;
  if (high < -745.2) return 0;
  if (lines::is_near_exp(high)) return lines::exp_of_near(high, low);
  const double n = std::nearbyint(high * std::numbers::log2e);
  const double r = std::fma(-n, kLn2High, high), s = std::fma(-n, kLn2Low, low);
  const double rounded = r + s;
  const double lost = (r - rounded) + s;
  const double e = expm1_of_small(rounded);
  return scale(1 + (e + lost * (1 + e)), static_cast<std::int64_t>(n));
}

// log(x) for 0 < x < infinity.
Sum log_as_sum(double x) {
  return x < std::numeric_limits<double>::min() ? lines::log_of_normal(x * 0x1p54, -54) : lines::log_of_normal(x, 0);
}

// x = n pi / 2 + high + low, |high| at most about pi / 4; n counts modulo 4.
struct Angle {
  std::int64_t n;
  double high, low;
};

// The binary digits of 2 / pi after the point, 32 to a word.
constexpr std::uint32_t kTwoOverPi[] = {
    0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u,
    0xb7246e3au, 0x424dd2e0u, 0x06492eeau, 0x09d1921cu, 0xfe1deb1cu, 0xb129a73eu, 0xe88235f5u, 0x2ebb4484u,
    0xe99c7026u, 0xb45f7e41u, 0x3991d639u, 0x835339f4u, 0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu,
    0xef2f118bu, 0x5a0a6d1fu, 0x6d367ecfu, 0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du, 0x7527bac7u, 0xebe5f17bu,
    0x3d0739f7u, 0x8a5292eau, 0x6bfb5fb1u, 0x1f8d5d08u, 0x56033046u, 0xfc7b6babu, 0xf0cfbc20u,
};

// For finite |x| above 1. Payne and Hanek, "Radian reduction for trigonometric functions" (1983): of the product of x
// and 2 / pi only the digits around the point matter. Those of 2 / pi that give multiples of 4 are left out, and the
// 224 that follow put the error below 2^-169, where no double comes nearer to a multiple of pi / 2 than 2^-62.
Angle reduce_large(double x) {
  constexpr int kWindow = 7;           // words of 2 / pi
  constexpr int kWords = kWindow + 2;  // of the product
  const auto bits = std::bit_cast<std::uint64_t>(x);
  const std::uint64_t mantissa = (bits & 0xfffffffffffffu) | (std::uint64_t{1} << 52);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff) - 1075;  // |x| = mantissa * 2^exponent
  const int first = exponent > 2 ? exponent - 2 : 0;                 // digits left out

  // product = mantissa * (digits of the window), the lowest word first.
  std::uint32_t product[kWords] = {};
  for (int i = 0; i < kWindow; ++i) {
    const int at = first + 32 * (kWindow - 1 - i);
    const std::uint64_t two = (std::uint64_t{kTwoOverPi[at / 32]} << 32) | kTwoOverPi[at / 32 + 1];
    const std::uint64_t digits = two << at % 32 >> 32;
    std::uint64_t carry = 0;
    for (int half = 0; half < 2; ++half) {
      const std::uint64_t factor = half == 0 ? mantissa & 0xffffffffu : mantissa >> 32;
      carry += product[i + half] + factor * digits;
      product[i + half] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    for (int j = i + 2; carry != 0; ++j) {
      carry += product[j];
      product[j] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
  }

  // The point stands before the lowest `places` digits. Two of the digits above it count, and become the multiple.
  const int places = first + 32 * kWindow - exponent;
  const int word = places / 32, shift = places % 32;
  const auto digit = [&](int place) { return static_cast<std::int64_t>(product[place / 32] >> place % 32 & 1); };
  std::int64_t n = digit(places) + 2 * digit(places + 1);
  product[word] &= (std::uint32_t{1} << shift) - 1;
  for (int i = word + 1; i < kWords; ++i) product[i] = 0;
  // Beyond one half, what is missing to the next multiple.
  const bool beyond = digit(places - 1) != 0;
  if (beyond) {
    ++n;
    std::uint64_t borrow = 0;
    for (int i = 0; i <= word; ++i) {
      const std::uint64_t one = i == word ? std::uint64_t{1} << shift : 0;
      const std::uint64_t difference = one - product[i] - borrow;
      product[i] = static_cast<std::uint32_t>(difference);
      borrow = difference >> 63;
    }
  }

  int top = word;
  while (top > 3 && product[top] == 0) --top;
  const double a = product[top] * 0x1p96, b = product[top - 1] * 0x1p64;
  double high = a + b;
  double low = (b - (high - a)) + (product[top - 2] * 0x1p32 + product[top - 3]);
  const double unit = std::bit_cast<double>(static_cast<std::uint64_t>(32 * (top - 3) - places + 1023) << 52);
  const double fraction = (high + low) * unit, rest = (low - ((high + low) - high)) * unit;
  constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0, kHalfPiLow = 0x1.1a62633145c07p-54;
  const double size = fraction * kHalfPiHigh;
  const double lost = std::fma(fraction, kHalfPiHigh, -size) + (fraction * kHalfPiLow + rest * kHalfPiHigh);
  high = size + lost;
  low = (size - high) + lost;
  if (beyond) high = -high, low = -low;
  return x < 0 ? Angle{-n, -high, -low} : Angle{n, high, low};
}

// sin (quarter = 0) or cos (1).
double sine(double x, std::int64_t quarter) {
  if (!std::isfinite(x)) return kNaN;
  if (lines::is_near_angle(x)) return lines::sine_of_near(x, static_cast<std::uint64_t>(quarter));
  const Angle angle = reduce_large(x);
  const std::int64_t which = (angle.n + quarter) & 3;
  const double value = which % 2 == 0 ? lines::sine_of(angle.high, angle.low) : lines::cosine_of(angle.high, angle.low);
  return which >= 2 ? -value : value;
}

}  // namespace

double portable_exp(double x) {
  return exp_of_sum(x, 0);
}

double portable_expm1(double x) {
  if (std::fabs(x) <= 0.35) return x == 0 ? x : expm1_of_small(x);
  if (std::fabs(x) <= 0.7) {
    const double half = expm1_of_small(0.5 * x);
    return half * (half + 2);
  }
  return portable_exp(x) - 1;
}

double portable_log(double x) {
  if (std::isnan(x) || x < 0) return kNaN;
  if (x == 0) return -kInfinity;
  if (x == kInfinity) return x;
  return log_as_sum(x).high;
}

double portable_log1p(double x) {
  if (std::isnan(x) || x < -1) return kNaN;
  if (std::fabs(x) < 0x1p-54 || x == kInfinity) return x;
  if (x == -1) return -kInfinity;
  const double u = 1 + x;
  const double lost = std::fabs(x) < 1 ? x - (u - 1) : 1 - (u - x);
  const Sum log = log_as_sum(u);
  return log.high + (log.low + lost / u);
}

double portable_tanh(double x) {
  const double size = std::fabs(x);
  if (!(size <= 22)) return std::isnan(x) ? x : std::copysign(1.0, x);
  const double e = portable_expm1(2 * size);
  const double value = size < 0.55 ? e / (e + 2) : 1 - 2 / (e + 2);
  return std::copysign(value, x);
}

double portable_erf(double x) {
  if (!lines::is_near_erf(x)) return std::isnan(x) ? x : std::copysign(1.0, x);
  return lines::erf_of_near(x);
}

double portable_pow(double x, double y) {
  if (y == 0 || x == 1) return 1;
  if (std::isnan(x) || std::isnan(y)) return kNaN;
  if (y == 1) return x;
  if (y == 2) return x * x;
  if (y == 0.5 && x > 0) return std::sqrt(x);
  const bool integer = std::trunc(y) == y, odd = integer && std::fabs(y) < 0x1p53 && std::fmod(y, 2.0) != 0;
  const bool negative = std::signbit(x);
  const double size = std::fabs(x);
  const double sign = negative && odd ? -1 : 1;
  if (size == 0) return sign * (y < 0 ? kInfinity : 0.0);
  if (std::isinf(y)) return size == 1 ? 1 : (size > 1) == (y > 0) ? kInfinity : 0.0;
  if (std::isinf(x)) return sign * (y > 0 ? kInfinity : 0.0);
  if (negative && !integer) return kNaN;
  const Sum log = log_as_sum(size);
  const double high = y * log.high;
  if (std::isinf(high)) return sign * (high > 0 ? kInfinity : 0.0);
  return sign * exp_of_sum(high, std::fma(y, log.high, -high) + y * log.low);
}

double portable_sin(double x) {
  return x == 0 ? x : sine(x, 0);
}
double portable_cos(double x) {
  return sine(x, 1);
}

}  // namespace lockstep::math
