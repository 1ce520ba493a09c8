#pragma once

// Types of arguments that several operations take.

#include <cstdint>

namespace lockstep {

/// What a loss does with its values: keep one per sample, average them, or add them up.
enum class Reduction : unsigned char { none, mean, sum };
inline constexpr Reduction kNone = Reduction::none;  ///< under libtorch's names, as the next ones
inline constexpr Reduction kMean = Reduction::mean;  ///< Reduction::mean
inline constexpr Reduction kSum = Reduction::sum;    ///< Reduction::sum

/// A height and a width: kernel sizes, strides, paddings. One number stands for both, so `3` and `{3, 5}` work.
struct Size2d {
  std::int64_t h = 0;  ///< height
  std::int64_t w = 0;  ///< width

  constexpr Size2d() = default;
  constexpr Size2d(std::int64_t both) : h(both), w(both) {}
  constexpr Size2d(std::int64_t height, std::int64_t width) : h(height), w(width) {}
  friend constexpr bool operator==(Size2d, Size2d) = default;
};

/// A depth, a height and a width, as Size2d.
struct Size3d {
  std::int64_t d = 0;  ///< depth
  std::int64_t h = 0;  ///< height
  std::int64_t w = 0;  ///< width

  constexpr Size3d() = default;
  constexpr Size3d(std::int64_t all) : d(all), h(all), w(all) {}
  constexpr Size3d(std::int64_t depth, std::int64_t height, std::int64_t width) : d(depth), h(height), w(width) {}
  friend constexpr bool operator==(Size3d, Size3d) = default;
};

}  // namespace lockstep
