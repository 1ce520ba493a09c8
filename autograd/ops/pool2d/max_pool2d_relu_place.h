#pragma once

#include <cstdint>

namespace lockstep {

/// Where max(0, x) is taken in the same pass as the pool, if at all.
enum class ReluPlace : std::uint8_t { none, before, after };

}  // namespace lockstep
