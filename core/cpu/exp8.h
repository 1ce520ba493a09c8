#pragma once

// For .cpp files only.

#include <cstdint>

#include "lockstep/core/cpu/vec8.h"
#include "lockstep/core/fixed_math.h"

namespace lockstep::cpu {

/// math::exp() of eight lanes, bit for bit: the same operations in the same order. For loops in which the compiler's
/// own vectors are not enough, such as those that sum on the way.
[[gnu::always_inline]] inline Vec8 exp8(Vec8 x) {
  constexpr IntVec8 kBias{127, 127, 127, 127, 127, 127, 127, 127};
  const Vec8 round = broadcast8(math::fixed::kRound);
  x = smaller8(broadcast8(89.0f), x);
  x = larger8(broadcast8(-104.0f), x);
  const Vec8 shifted = fma8(x, broadcast8(1.44269504f), round);
  const IntVec8 n = reinterpret_cast<IntVec8>(shifted) - reinterpret_cast<IntVec8>(round);
  const Vec8 whole = shifted - round;
  const Vec8 r = fma8(whole, broadcast8(2.12194440e-4f), fma8(whole, broadcast8(-0.693359375f), x));
  Vec8 p = broadcast8(0.00139262134663f);
  p = fma8(p, r, broadcast8(0.00836320297158f));
  p = fma8(p, r, broadcast8(0.0416665544377f));
  p = fma8(p, r, broadcast8(0.16666576846f));
  p = fma8(p, r, broadcast8(0.5f));
  p = fma8(p * r, r, r) + broadcast8(1.0f);
  const IntVec8 half = n >> 1;
  return p * reinterpret_cast<Vec8>((half + kBias) << 23) * reinterpret_cast<Vec8>((n - half + kBias) << 23);
}

}  // namespace lockstep::cpu
