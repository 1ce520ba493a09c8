#pragma once

#include <cstdint>

namespace lockstep::cpu {

/// False if one of the values is infinite or NaN. Many values are looked at by several threads.
bool all_finite(const float* values, std::int64_t count);

}  // namespace lockstep::cpu
