#pragma once

namespace lockstep {

/// What a loss does with its values: keep one per sample, average them, or add them up.
enum class Reduction : unsigned char { none, mean, sum };

}  // namespace lockstep
