#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::data {

/// to[i] = (from[i] / 255 - mean) / std in float32: the values, to the bit, of torchvision's ToTensor and Normalize.
/// Divisions, not a scale and a shift: those would round differently wherever the compiler fuses them.
inline void normalize_pixels(std::span<const std::uint8_t> from, float mean, float std, float* to) {
  const std::uint8_t* source = from.data();
  const std::size_t count = from.size();
  for (std::size_t i = 0; i < count; ++i) to[i] = (static_cast<float>(source[i]) / 255.0f - mean) / std;
}

}  // namespace lockstep::data
