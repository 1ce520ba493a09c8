#pragma once

// For .cpp files only.

#include <cstdint>

#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/fixed_math.h"

namespace lockstep::cpu {

/// math::exp() of eight lanes, bit for bit: the same operations in the same order. For loops in which the compiler's
/// own vectors are not enough, such as those that sum on the way.
[[gnu::always_inline]] inline Vec8 exp8(Vec8 x) {
  namespace fixed = math::fixed;
  constexpr IntVec8 kBias{127, 127, 127, 127, 127, 127, 127, 127};
  const Vec8 round = broadcast8(fixed::kRound);
  x = smaller8(broadcast8(89.0f), x);
  x = larger8(broadcast8(-104.0f), x);
  const Vec8 shifted = fma8(x, broadcast8(fixed::kLog2E), round);
  const IntVec8 n = reinterpret_cast<IntVec8>(shifted) - reinterpret_cast<IntVec8>(round);
  const Vec8 whole = shifted - round;
  const Vec8 r = fma8(whole, broadcast8(-fixed::kLn2Low), fma8(whole, broadcast8(-fixed::kLn2High), x));
  Vec8 p = broadcast8(fixed::kExp6);
  p = fma8(p, r, broadcast8(fixed::kExp5));
  p = fma8(p, r, broadcast8(fixed::kExp4));
  p = fma8(p, r, broadcast8(fixed::kExp3));
  p = fma8(p, r, broadcast8(fixed::kExp2));
  p = fma8(p * r, r, r) + broadcast8(1.0f);
  const IntVec8 half = n >> 1;
  return p * reinterpret_cast<Vec8>((half + kBias) << 23) * reinterpret_cast<Vec8>((n - half + kBias) << 23);
}

}  // namespace lockstep::cpu
