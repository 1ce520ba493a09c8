#pragma once

// The straight lines that the functions of double_math.h consist of where their argument is neither huge nor special.
// They hold no branches, so that loops of them vectorise; the functions call the very same lines. For .cpp files and
// kernels only.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <utility>

namespace lockstep::math::lines {

inline constexpr double kLn2High = 0x1.62e42fefa38p-1;  // 42 bits, so that small multiples are exact
inline constexpr double kLn2Low = 0x1.ef35793c7673p-45;

/// Adding it to a whole number of less than 2^51 leaves that in the low bits of the double.
inline constexpr double kWhole = 0x1.8p52;
inline std::uint64_t low_bits(double whole) {
  return std::bit_cast<std::uint64_t>(whole + kWhole) - std::bit_cast<std::uint64_t>(kWhole);
}

/// Calls step(index) for 0 <= index < N as straight code.
template <typename Step, int... kIndex>
[[gnu::always_inline]] inline void unrolled(Step&& step, std::integer_sequence<int, kIndex...>) {
  (step(std::integral_constant<int, kIndex>{}), ...);
}
template <int N, typename Step>
[[gnu::always_inline]] inline void unrolled(Step&& step) {
  unrolled(step, std::make_integer_sequence<int, N>{});
}

namespace detail {
/// 1 / n! as the sums below have always had it: 1 / 16! times 16, 15, ...
constexpr double inverse_factorial(int n) {
  double value = 1.0 / 20'922'789'888'000.0;  // 1 / 16!
  for (int i = 16; i > n; --i) value *= i;
  return value;
}
}  // namespace detail

/// exp(r) - 1 for |r| <= 0.35, by its series.
[[gnu::always_inline]] inline double expm1_of_small(double r) {
  double sum = detail::inverse_factorial(16);
  unrolled<13>([&](auto i) {
    constexpr double kTerm = detail::inverse_factorial(15 - decltype(i)::value);
    sum = std::fma(sum, r, kTerm);
  });
  return r + r * r * std::fma(sum, r, 0.5);
}

/// Whether is_near(i) holds for all i below `count`: without a branch, so that the loop is one over vectors.
template <typename IsNear>
[[gnu::always_inline]] inline bool all_near(std::int64_t count, IsNear&& is_near) {
  std::int64_t far = 0;
  for (std::int64_t i = 0; i < count; ++i) far |= is_near(i) ? 0 : 1;
  return far == 0;
}

/// Bounds for exp_of_near().
inline bool is_near_exp(double x) {
  return std::fabs(x) <= 700.0;
}
/// x + low = n ln 2 + high + lost, |high| at most about 0.35, and n, whole and near, in the low bits of `whole`.
struct Remainder {
  double whole, high, lost;
};
[[gnu::always_inline]] inline Remainder reduce_exponent(double x, double low) {
  const double whole = x * std::numbers::log2e + kWhole, n = whole - kWhole;
  const double r = std::fma(-n, kLn2High, x), s = std::fma(-n, kLn2Low, low);
  const double high = r + s;
  return {whole, high, (r - high) + s};
}
/// exp() of what was reduced, for e = expm1_of_small(high). Times 2^n: n is added to the exponent.
[[gnu::always_inline]] inline double raised(const Remainder& at, double e) {
  const double value = 1 + (e + at.lost * (1 + e));
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) + (std::bit_cast<std::uint64_t>(at.whole) << 52));
}
/// exp(high + low) where is_near_exp(high), |low| much less than |high|.
[[gnu::always_inline]] inline double exp_of_near(double high, double low) {
  const Remainder at = reduce_exponent(high, low);
  return raised(at, expm1_of_small(at.high));
}

struct Sum {
  double high, low;
};

/// log(x 2^k) for normal x > 0: with x = 2^j m and s = (m - 1) / (m + 1), (j + k) ln 2 + 2 s + 2 s^3 / 3 + 2 s^5 / 5
/// ...
[[gnu::always_inline]] inline Sum log_of_normal(double x, double k) {
  const auto bits = std::bit_cast<std::uint64_t>(x);
  // The exponent as a double: the low bits of 2^52 and more.
  const double exponent = std::bit_cast<double>((bits >> 52) | std::bit_cast<std::uint64_t>(0x1p52)) - 0x1p52 - 1023.0;
  const double whole = std::bit_cast<double>((bits & 0xfffffffffffffu) | (std::uint64_t{1023} << 52));
  const bool upper = whole > std::numbers::sqrt2;
  const double m = upper ? whole * 0.5 : whole;
  const double kd = (exponent + k) + (upper ? 1.0 : 0.0);
  const double f = m - 1, d = 2 + f, d_lost = f - (d - 2);
  const double inverse = 1 / d, s = f * inverse;
  const double s_lost = (std::fma(-s, d, f) - s * d_lost) * inverse;
  const double z = s * s;
  double sum = 1.0 / 23;
  unrolled<10>([&](auto i) {
    constexpr double kTerm = 1.0 / (21 - 2 * decltype(i)::value);
    sum = std::fma(sum, z, kTerm);
  });
  const double tail = sum * z;
  const double first = kd * kLn2High, second = 2 * s;
  const double high = first + second;
  const double lost = std::fabs(first) >= std::fabs(second) ? (first - high) + second : (second - high) + first;
  const double low = lost + (2 * s_lost + 2 * s * tail + kd * kLn2Low);
  const double total = high + low;
  return {total, (high - total) + low};
}

/// log(x) for normal, finite x > 0.
inline bool is_near_log(double x) {
  constexpr double kLeast = std::numeric_limits<double>::min(), kInfinity = std::numeric_limits<double>::infinity();
  return (x >= kLeast) & (x < kInfinity);
}
[[gnu::always_inline]] inline double log_of_near(double x) {
  return log_of_normal(x, 0).high;
}

/// x = n pi / 2 + high + low, |high| at most about pi / 4; n, a whole number, counts modulo 4.
struct Angle {
  double n, high, low;
};

inline bool is_near_angle(double x) {
  return std::fabs(x) <= 1e5;
}
/// Where is_near_angle(x).
[[gnu::always_inline]] inline Angle reduce_near(double x) {
  constexpr double kHalfPi1 = 0x1.921fb54400000p0, kHalfPi2 = 0x1.0b4611a600000p-34, kHalfPi3 = 0x1.3198a2e037073p-69;
  const double n = std::nearbyint(x * (2 / std::numbers::pi));
  double r = std::fma(-n, kHalfPi1, x);
  const double before = r;
  r = std::fma(-n, kHalfPi2, r);
  double lost = std::fma(-n, kHalfPi2, before - r);
  lost = std::fma(-n, kHalfPi3, lost);
  const double high = r + lost;
  return {n, high, (r - high) + lost};
}

namespace detail {
/// 1 / n! with the signs of the series of sine and cosine.
constexpr double signed_inverse_factorial(int n) {
  double value = 1.0;
  for (int i = 2; i <= n; ++i) value /= i;
  return n / 2 % 2 == 0 ? value : -value;
}
}  // namespace detail

[[gnu::always_inline]] inline double sine_of(double a, double lost) {
  const double z = a * a;
  double sum = detail::signed_inverse_factorial(17);
  unrolled<7>([&](auto i) {
    constexpr double kTerm = detail::signed_inverse_factorial(15 - 2 * decltype(i)::value);
    sum = std::fma(sum, z, kTerm);
  });
  return a + (a * (sum * z) + lost);
}
[[gnu::always_inline]] inline double cosine_of(double a, double lost) {
  const double z = a * a;
  double sum = detail::signed_inverse_factorial(18);
  unrolled<7>([&](auto i) {
    constexpr double kTerm = detail::signed_inverse_factorial(16 - 2 * decltype(i)::value);
    sum = std::fma(sum, z, kTerm);
  });
  const double half = 0.5 * z, one = 1 - half;
  return one + (((1 - one) - half) + (z * z * sum - a * lost));
}

/// The sine n quarters on from the angle that has this sine and cosine: bits are chosen, for want of a branch.
[[gnu::always_inline]] inline double turned(double sine, double cosine, std::uint64_t n) {
  const auto bits = std::bit_cast<std::uint64_t>(sine);
  const std::uint64_t exchanged = (bits ^ std::bit_cast<std::uint64_t>(cosine)) & (std::uint64_t{0} - (n & 1));
  return std::bit_cast<double>(bits ^ exchanged ^ ((n & 2) << 62));
}
/// sin(x), or cos(x) with one quarter, where is_near_angle(x), but for the sign of sin(-0).
[[gnu::always_inline]] inline double sine_of_near(double x, std::uint64_t quarters) {
  const Angle angle = reduce_near(x);
  return turned(sine_of(angle.high, angle.low), cosine_of(angle.high, angle.low), low_bits(angle.n) + quarters);
}

/// tan(x) where is_near_angle(x), but for the sign of tan(-0).
[[gnu::always_inline]] inline double tan_of_near(double x) {
  const Angle angle = reduce_near(x);
  const double sine = sine_of(angle.high, angle.low), cosine = cosine_of(angle.high, angle.low);
  const std::uint64_t n = low_bits(angle.n);
  return turned(sine, cosine, n) / turned(sine, cosine, n + 1);
}

/// 1 / (1 + exp(-x)), where is_near_exp(x).
[[gnu::always_inline]] inline double sigmoid_of_near(double x) {
  const double e = exp_of_near(-std::fabs(x), 0);
  return (x >= 0 ? 1.0 : e) / (1.0 + e);
}

/// exp(x) - 1 where is_near_exp(x). The series of x, of its half or of what exp() leaves: one of them is computed.
[[gnu::always_inline]] inline double expm1_of_near(double x) {
  const Remainder at = reduce_exponent(x, 0);
  const bool small = std::fabs(x) <= 0.35, middle = std::fabs(x) <= 0.7;
  const double e = expm1_of_small(small ? x : (middle ? 0.5 * x : at.high));
  const double large = raised(at, e) - 1;
  return x == 0 ? x : (small ? e : (middle ? e * (e + 2) : large));
}
/// log(1 + x) for finite x > -1.
inline bool is_near_log1p(double x) {
  return (x > -1) & (x < std::numeric_limits<double>::infinity());
}
[[gnu::always_inline]] inline double log1p_of_near(double x) {
  const double u = 1 + x;
  const double lost = std::fabs(x) < 1 ? x - (u - 1) : 1 - (u - x);
  const Sum log = log_of_normal(u, 0);
  return std::fabs(x) < 0x1p-54 ? x : log.high + (log.low + lost / u);
}
/// log(1 + exp(-|x|)) where is_near_exp(x).
[[gnu::always_inline]] inline double log_of_one_and_exp(double x) {
  return log1p_of_near(exp_of_near(-std::fabs(x), 0));
}

inline bool is_near_tanh(double x) {
  return std::fabs(x) <= 22.0;
}
/// Where is_near_tanh(x).
[[gnu::always_inline]] inline double tanh_of_near(double x) {
  const double size = std::fabs(x);
  const double e = expm1_of_near(2 * size);
  // By the bits, since a branch here would become two divisions.
  const std::uint64_t small = std::uint64_t{0} - static_cast<std::uint64_t>(size < 0.55);
  const std::uint64_t above = (std::bit_cast<std::uint64_t>(e) & small) | (std::bit_cast<std::uint64_t>(2.0) & ~small);
  const double share = std::bit_cast<double>(above) / (e + 2);
  return std::copysign(size < 0.55 ? share : 1 - share, x);
}

namespace detail {
/// erf(x) / x - 1 in powers of x^2 for |x| <= 1, the highest first: a Chebyshev fit made for this file.
inline constexpr double kErf[] = {0x1.05ffd737fb32ep-34,  -0x1.389d4f2641625p-30, 0x1.f7b4bf3b13964p-27,
                                  -0x1.5f1ecb6f0764cp-23, 0x1.b9df224ca4b97p-20,  -0x1.f4d1e3183f7aep-17,
                                  0x1.f9a321d5b8e1ep-14,  -0x1.c02db3dac435fp-11, 0x1.565bcd0dbaa38p-8,
                                  -0x1.b82ce31284e00p-6,  0x1.ce2f21a042b30p-4,   -0x1.812746b0379e6p-2,
                                  0x1.06eba8214db69p-3};
/// exp(x^2) erfc(x) (1 + 2 x) in powers of (x - 3) / (x + 3) for 1 <= x <= 6, likewise.
inline constexpr double kErfc[] = {
    0x1.32af670bbdb95p-19, -0x1.192982fbf6129p-20, -0x1.4aeb5d3c995fcp-16, 0x1.56fea76f8e4dbp-18,
    0x1.06405c01b1a34p-13, -0x1.b9305c3ca50ecp-14, -0x1.98daefef091c2p-11, 0x1.ef1c0567e5b75p-10,
    0x1.4b884db29eaeap-9,  -0x1.8574c4279d471p-6,  0x1.17ca2877f10ebp-4,   -0x1.e88b803a23eedp-4,
    0x1.098366a5b48dep-3,  -0x1.85a15c58aaf57p-5,  -0x1.15c084bb9e8f6p-3,  0x1.40c522d7e4987p+0};

template <std::size_t N>
[[gnu::always_inline]] inline double polynomial(const double (&terms)[N], double x) {
  double sum = terms[0];
  unrolled<static_cast<int>(N) - 1>([&](auto i) { sum = std::fma(sum, x, terms[decltype(i)::value + 1]); });
  return sum;
}
}  // namespace detail

inline bool is_near_erf(double x) {
  return std::fabs(x) < 6.0;
}
/// erf(x), and exp(-x^2), which it is made of.
struct ErfAndGauss {
  double erf, gauss;
};
/// Where is_near_erf(x).
[[gnu::always_inline]] inline ErfAndGauss erf_and_gauss_of_near(double x) {
  const double a = std::fabs(x), square = a * a;
  const double small = std::fma(x, detail::polynomial(detail::kErf, square), x);
  const double gauss = exp_of_near(-square, -std::fma(a, a, -square));
  const double rest = gauss * detail::polynomial(detail::kErfc, (a - 3) / (a + 3)) / (1 + 2 * a);
  return {a < 1 ? small : std::copysign(1 - rest, x), gauss};
}
[[gnu::always_inline]] inline double erf_of_near(double x) {
  return erf_and_gauss_of_near(x).erf;
}

/// Arguments for pow_of_near(): x is positive and normal, y no exponent that pow() treats by itself, and the result is
/// far from overflow and underflow.
[[gnu::always_inline]] inline bool is_near_pow(double x, double y) {
  const double exponent =
      std::bit_cast<double>((std::bit_cast<std::uint64_t>(x) >> 52) | std::bit_cast<std::uint64_t>(0x1p52)) - 0x1p52;
  const bool special = (y == 0.5) | (y == 1) | (y == 2);
  return is_near_log(x) & (std::fabs(y) * (std::fabs(exponent - 1023) + 1) < 1000) & !special;
}
[[gnu::always_inline]] inline double pow_of_near(double x, double y) {
  const Sum log = log_of_normal(x, 0);
  const double high = y * log.high;
  return exp_of_near(high, std::fma(y, log.high, -high) + y * log.low);
}

}  // namespace lockstep::math::lines
