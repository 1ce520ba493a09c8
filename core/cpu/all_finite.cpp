#include "lockstep/core/cpu/all_finite.h"

#include <atomic>
#include <bit>

#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {

bool all_finite(const float* values, std::int64_t count) {
  constexpr std::int32_t kExponent = 0x7f800000;
  std::atomic<bool> finite = true;
  parallel_for(count, 1 << 15, [&](std::int64_t begin, std::int64_t end) {
    std::int32_t strange = 0;
    for (std::int64_t i = begin; i < end; ++i)
      strange |= (std::bit_cast<std::int32_t>(values[i]) & kExponent) == kExponent ? 1 : 0;
    if (strange) finite = false;
  });
  return finite;
}

}  // namespace lockstep::cpu
