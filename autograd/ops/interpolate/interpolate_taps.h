#pragma once

// Where a place of the result looks, shared by every device. For kernels (.cpp and .cu) only.

#include <cmath>
#include <cstdint>

#include "lockstep/autograd/ops/interpolate/interpolate_kernels.h"
#include "lockstep/core/philox.h"

namespace lockstep {

/// Element `low` with weight 1 - high_weight and element `high` with high_weight.
struct Taps {
  std::int64_t low, high;
  double high_weight;
};

LOCKSTEP_HOST_DEVICE inline Taps taps_at(const InterpolateAxis& axis, std::int64_t place) {
  if (axis.nearest) {  // in float, as PyTorch, which decides where a place lies between two pixels
    const float at = std::floor(static_cast<float>(place) * static_cast<float>(axis.scale));
    const std::int64_t low = static_cast<std::int64_t>(at) < axis.in - 1 ? static_cast<std::int64_t>(at) : axis.in - 1;
    return {low, low, 0.0};
  }
  double at =
      axis.corners ? axis.scale * static_cast<double>(place) : axis.scale * (static_cast<double>(place) + 0.5) - 0.5;
  at = at < 0.0 ? 0.0 : at;
  std::int64_t low = static_cast<std::int64_t>(at);
  low = low < axis.in - 1 ? low : axis.in - 1;
  const double rest = at - static_cast<double>(low);
  return {low, low < axis.in - 1 ? low + 1 : low, rest < 1.0 ? rest : 1.0};
}

/// A place's elements and their weights; the same element may come more than once.
struct ManyTaps {
  std::int64_t at[4];
  double weight[4];
  int count;
};

LOCKSTEP_HOST_DEVICE inline ManyTaps many_taps_at(const InterpolateAxis& axis, std::int64_t place) {
  ManyTaps taps = {};
  if (!axis.cubic) {
    const Taps two = taps_at(axis, place);
    taps.count = axis.nearest ? 1 : 2;
    taps.at[0] = two.low;
    taps.at[1] = two.high;
    taps.weight[0] = 1.0 - two.high_weight;
    taps.weight[1] = two.high_weight;
    return taps;
  }
  const double at =
      axis.corners ? axis.scale * static_cast<double>(place) : axis.scale * (static_cast<double>(place) + 0.5) - 0.5;
  const double below = std::floor(at), t = at - below;
  taps.count = 4;
  for (int k = 0; k < 4; ++k) {
    const std::int64_t element = static_cast<std::int64_t>(below) + k - 1;
    taps.at[k] = element < 0 ? 0 : (element < axis.in - 1 ? element : axis.in - 1);
    // Keys' kernel: one cubic up to a distance of 1, another up to 2.
    constexpr double a = -0.75;
    const double d = k < 2 ? t + (1 - k) : k - 1 - t;
    taps.weight[k] =
        k == 1 || k == 2 ? ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0 : ((a * d - 5.0 * a) * d + 8.0 * a) * d - 4.0 * a;
  }
  return taps;
}

/// A range of places that holds all that look at `element`.
LOCKSTEP_HOST_DEVICE inline void places_of(const InterpolateAxis& axis, std::int64_t element, std::int64_t& first,
                                           std::int64_t& last) {
  first = 0;
  last = axis.out - 1;
  if (axis.scale <= 0.0) return;
  const double reach = axis.cubic ? 2.0 : 1.0;
  const double low = (static_cast<double>(element) - reach) / axis.scale - 2.0;
  const double high = (static_cast<double>(element) + reach + 1.0) / axis.scale + 2.0;
  if (low > 0.0) first = static_cast<std::int64_t>(low);
  if (high < static_cast<double>(last) && element < axis.in - 1) last = static_cast<std::int64_t>(high);
}

}  // namespace lockstep
