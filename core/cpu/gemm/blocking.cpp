#include "lockstep/core/cpu/gemm/blocking.h"

#include <unistd.h>

namespace lockstep::cpu::gemm_detail {

std::int64_t second_level_cache() {
  static const std::int64_t bytes = [] {
    const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return found > 0 ? std::int64_t{found} : std::int64_t{1} << 20;
  }();
  return bytes;
}

}  // namespace lockstep::cpu::gemm_detail
