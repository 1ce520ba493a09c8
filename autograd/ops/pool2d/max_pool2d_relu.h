#pragma once

// Relu beside a pool, for files of any instruction set.

#include <cstdint>

namespace lockstep {

/// Where max(0, x) is taken in the same pass as the pool, if at all.
enum class ReluPlace : std::uint8_t { none, before, after };

/// Added to a position whose maximum is not above 0, by which relu's gradient is known.
constexpr std::uint8_t kMaxPoolNotPositive = 4;

}  // namespace lockstep
