#pragma once

// Where the positions of a correlation's result read, and panels of what they read. For .cpp files only.

#include <cstdint>
#include <vector>

#include "lockstep/core/cpu/conv/eight_positions.h"
#include "lockstep/core/cpu/conv/sixteen_positions.h"

namespace lockstep::cpu::conv_detail {

class ReadPositions {
 public:
  /// A multiple of sixteen positions, or of eight if not `wide`: whether AVX-512 packs them.
  void resize(std::int64_t count, bool wide);
  /// Of as many from `first` on, from where in the images each reads; -1: no position. Of whole vectors.
  void set(std::int64_t first, const std::int32_t* bases, std::int64_t count);

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
