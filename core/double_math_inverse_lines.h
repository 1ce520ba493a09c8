#pragma once

// Lines as in double_math_lines.h, of inverse trigonometric functions.

#include <cmath>
#include <cstdint>

#include "lockstep/core/double_math_lines.h"

namespace lockstep::math::lines {
namespace detail {
// atan(k / 16), k = 0 ... 16, as a sum of two doubles.
inline constexpr double kAtanHigh[] = {0x0.0p+0,
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
inline constexpr double kAtanLow[] = {0x0.0p+0,
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
inline constexpr double kHalfPiHigh = 0x1.921fb54442d18p+0, kHalfPiLow = 0x1.1a62633145c07p-54;
}  // namespace detail

/// atan(a) for a in [0, 1].
[[gnu::always_inline]] inline double atan_to_one(double a) {
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
  const std::uint64_t k = low_bits(nearest);
  return detail::kAtanHigh[k] + (detail::kAtanLow[k] + std::fma(t * z, p, t));
}
/// For any x but NaN.
[[gnu::always_inline]] inline double atan_of_near(double x) {
  const double a = std::fabs(x);
  const bool inverted = a > 1;
  const double angle = atan_to_one(inverted ? 1 / a : a);
  return std::copysign(inverted ? detail::kHalfPiHigh - (angle - detail::kHalfPiLow) : angle, x);
}
/// For |x| <= 1, as acos_of_near().
[[gnu::always_inline]] inline double asin_of_near(double x) {
  return atan_of_near(x / std::sqrt((1 - x) * (1 + x)));
}
[[gnu::always_inline]] inline double acos_of_near(double x) {
  return 2 * atan_of_near(std::sqrt((1 - x) / (1 + x)));
}

}  // namespace lockstep::math::lines
