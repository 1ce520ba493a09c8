#pragma once

// Dense rows of the half types to float32 and back, by vectors. For .cpp files only.

#include <cstdint>
#include <type_traits>

#include "lockstep/core/cpu/instruction_set.h"
#include "lockstep/core/dtype.h"

namespace lockstep::cpu {

/// values[i] = source[i] for i < count, exactly. `set`: one that this processor has, here and below.
void widen_row(const Half* source, std::int64_t count, float* values, InstructionSet set = instruction_set());
void widen_row(const BFloat16* source, std::int64_t count, float* values, InstructionSet set = instruction_set());

/// target[i] = values[i] for i < count, rounded as the types' own conversions do: to nearest, ties to even; a NaN stays
/// one and keeps its sign.
void narrow_row(const float* values, std::int64_t count, Half* target, InstructionSet set = instruction_set());
void narrow_row(const float* values, std::int64_t count, BFloat16* target, InstructionSet set = instruction_set());

/// Whether T is a type whose rows are widened: a kernel computes in floats, and need be compiled for those alone.
template <typename T>
inline constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

}  // namespace lockstep::cpu
