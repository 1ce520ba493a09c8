#pragma once

// Sixteen neighbouring positions of a correlation's result, as AVX-512 packs what they read. For .cpp files only.

#include <cstdint>

namespace lockstep::cpu::conv_detail {

struct Sixteen {
  static constexpr int kMost = 4;
  int count;                   ///< of runs; -1: there are more
  std::int64_t first[kMost];   ///< lane j of a run reads at first + j
  std::uint16_t lanes[kMost];  ///< those of a run; a lane in none of them is 0
};

/// For each of `steps` steps k: to[k * width + j] = what lane j reads, offsets[k] further.
void pack_sixteen(const Sixteen& positions, const float* images, const std::int32_t* offsets, std::int64_t steps,
                  float* to, std::int64_t width);

}  // namespace lockstep::cpu::conv_detail
