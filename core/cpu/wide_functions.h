#pragma once

// Functions that are compiled for AVX-512 too. For .cpp files only.

#include "lockstep/core/cpu/instruction_set.h"

namespace lockstep::cpu {

// Note [Wide functions]
// Where much is computed for each element, vectors of sixteen are up to twice as fast as the build's own of eight. Such
// a loop is compiled a second time, in a function marked LOCKSTEP_WIDE, which is called where has_wide_functions().
// What it calls becomes part of it, so that no code for AVX-512 is shared with the rest (Note [One instruction set a
// file]), and the bits stay: an element has a lane of its own, and fused multiply-adds are spelled out.
#if defined(__x86_64__)
#define LOCKSTEP_WIDE __attribute__((flatten, noinline, target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define LOCKSTEP_WIDE
#endif

/// Whether functions marked LOCKSTEP_WIDE may be called. Throws Error if LOCKSTEP_CPU names no instruction set.
inline bool has_wide_functions() {
  static const bool has = has_instruction_set(InstructionSet::avx512) && instruction_set() == InstructionSet::avx512;
  return has;
}

namespace detail {

template <typename Body>
LOCKSTEP_WIDE auto call_wide(Body body) {
  return body();
}
template <typename Body>
[[gnu::flatten, gnu::noinline]] auto call(Body body) {
  return body();
}

}  // namespace detail

/// body(), compiled for AVX-512 too, and called so where there is one. What it calls becomes part of it: a call would
/// keep its loops from being vectorised. It holds what it needs by value.
template <typename Body>
auto by_widest_vectors(Body body) {
  return has_wide_functions() ? detail::call_wide(body) : detail::call(body);
}

}  // namespace lockstep::cpu
