#pragma once

// Loops over the elements of a row, and functions that are compiled for AVX-512 too. For .cpp files only.

#include <cstdint>
#include <type_traits>

#include "lockstep/core/cpu/instruction_set.h"
#include "lockstep/core/vector_math.h"

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

// Some lines of a result at a time. Those of the next pieces are asked for as ones that will be written: a line that
// was only read, as of a row that is changed in place, would have to be asked for again.
template <typename T, typename F>
[[gnu::always_inline]] inline void write_pieces(T* out, std::int64_t count, F value) {
  constexpr std::int64_t kLine = 64 / sizeof(T), kPiece = 4 * kLine, kAhead = 8 * kPiece;
  std::int64_t i = 0;
  for (; i + kPiece <= count; i += kPiece) {
    if (i + kAhead < count)
      for (std::int64_t line = 0; line < kPiece; line += kLine) __builtin_prefetch(out + i + kAhead + line, 1);
    LOCKSTEP_VECTORIZE
    for (std::int64_t j = i; j < i + kPiece; ++j) out[j] = value(j);
  }
  LOCKSTEP_VECTORIZE
  for (std::int64_t j = i; j < count; ++j) out[j] = value(j);
}

template <typename T, typename F>
LOCKSTEP_WIDE void write_pieces_wide(T* out, std::int64_t count, F value) {
  write_pieces(out, count, value);
}

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

/// out[i] = value(i) for i < count. `value` may read out[i] and no other element of out; it holds what it needs by
/// value, so that the compiler knows that writing changes none of it.
template <typename T, typename F>
void write_row(T* out, std::int64_t count, F value) {
  if constexpr (std::is_same_v<T, float>)
    if (has_wide_functions()) return detail::write_pieces_wide(out, count, value);
  detail::write_pieces(out, count, value);
}

}  // namespace lockstep::cpu
