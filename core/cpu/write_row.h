#pragma once

// Rows of results, element by element. For .cpp files only.

#include <cstdint>
#include <type_traits>

#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::cpu {

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

}  // namespace detail

/// out[i] = value(i) for i < count. `value` may read out[i] and no other element of out; it holds what it needs by
/// value, so that the compiler knows that writing changes none of it.
template <typename T, typename F>
void write_row(T* out, std::int64_t count, F value) {
  if constexpr (std::is_floating_point_v<T>)
    if (has_wide_functions()) return detail::write_pieces_wide(out, count, value);
  detail::write_pieces(out, count, value);
}

}  // namespace lockstep::cpu
