#pragma once

// For .cpp files only.

#include <cstdint>

#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/fixed_math.h"

namespace lockstep::cpu {

/// math::exp_to_one() of eight lanes, bit for bit: the same operations in the same order. For loops in which the
/// compiler's own vectors are not enough, such as those that sum on the way.
[[gnu::always_inline]] inline Vec8 exp_to_one8(Vec8 x) {
  namespace fixed = math::fixed;
  const Vec8 round = broadcast8(fixed::kRound);
  x = larger8(broadcast8(fixed::kFarBelow), x);
  const Vec8 shifted = fma8(x, broadcast8(fixed::kLog2E), round);
  const IntVec8 biased = reinterpret_cast<IntVec8>(shifted) - static_cast<std::int32_t>(fixed::kExponents);
  const Vec8 whole = shifted - round;
  const Vec8 r = fma8(whole, broadcast8(-fixed::kLn2Low), fma8(whole, broadcast8(-fixed::kLn2High), x));
  Vec8 p = broadcast8(fixed::kExp6);
  p = fma8(p, r, broadcast8(fixed::kExp5));
  p = fma8(p, r, broadcast8(fixed::kExp4));
  p = fma8(p, r, broadcast8(fixed::kExp3));
  p = fma8(p, r, broadcast8(fixed::kExp2));
  p = fma8(p * r, r, r) + broadcast8(1.0f);
  const IntVec8 half = biased >> 1;
  return p * reinterpret_cast<Vec8>(half << 23) * reinterpret_cast<Vec8>((biased - half) << 23);
}

}  // namespace lockstep::cpu
