#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::distributed {

/// When things happened in the last synchronised backward pass; readings of steady_now_ns().
struct ReducerTrace {
  std::int64_t first_gradient_ns = 0;     ///< backward reached the first parameter
  std::int64_t last_gradient_ns = 0;      ///< backward's computation ended here
  std::int64_t finished_ns = 0;           ///< all buckets reduced
  std::vector<std::int64_t> launched_ns;  ///< by bucket
};

}  // namespace lockstep::distributed
