#pragma once

// Where the positions of a correlation's result read, and panels of what they read. For .cpp files only.

#include <cstdint>
#include <vector>

#include "lockstep/core/cpu/conv/eight_positions.h"
#include "lockstep/core/cpu/conv/sixteen_positions.h"

namespace lockstep::cpu::conv_detail {

class ReadPositions {
 public:
  /// bases: of each position, from where in the images; -1: no position. A multiple of sixteen, or of eight if not
  /// `wide`: whether AVX-512 packs them.
  void set(const std::vector<std::int32_t>& bases, bool wide);

  const Eight* eights() const { return eights_.data(); }
  /// Whether positions [first, first + width) are eights of neighbours.
  bool all_runs(std::int64_t first, std::int64_t width) const;
  /// to[k * width + j] = what position first + j reads at offsets[k], for `steps` steps k.
  void pack(std::int64_t first, std::int64_t width, const float* images, const std::int32_t* offsets,
            std::int64_t steps, float* to) const;

 private:
  std::vector<Eight> eights_;
  std::vector<Sixteen> sixteens_;  // none: not wide
};

}  // namespace lockstep::cpu::conv_detail
