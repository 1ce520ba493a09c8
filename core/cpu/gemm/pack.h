#pragma once

// Operands of a product, copied into panels: what a micro-kernel reads lies together, in the order it is read. For .cpp
// files only.

#include <cstdint>
#include <cstring>

#include "lockstep/core/cpu/gemm/blocking.h"

#pragma GCC diagnostic ignored "-Wpsabi"  // every function that takes or returns vectors is inlined

namespace lockstep::cpu::gemm_detail {

/// 32 bytes of T.
template <typename T>
struct PackVector {
  typedef T type __attribute__((vector_size(32)));
  static constexpr int kLanes = 32 / sizeof(T);
};

template <typename V>
[[gnu::always_inline]] inline V load_vector(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename V>
[[gnu::always_inline]] inline void store_vector(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

constexpr std::int64_t kRowsAhead = 16;  // between what is copied and what is prefetched

/// to[p * padded + j] = from[p * stride + j] for p < k and j < width; 0 for width <= j < padded.
template <typename T>
void pack_rows(const T* from, std::int64_t stride, std::int64_t k, std::int64_t width, std::int64_t padded, T* to) {
  using V = typename PackVector<T>::type;
  typedef T Half __attribute__((vector_size(16)));
  constexpr std::int64_t kLanes = PackVector<T>::kLanes;
  if (width < padded) std::memset(to, 0, static_cast<std::size_t>(k * padded) * sizeof(T));
  for (std::int64_t p = 0; p < k; ++p, from += stride, to += padded) {
    __builtin_prefetch(from + kRowsAhead * stride);
    if (width >= kLanes) {
      for (std::int64_t j = 0; j + kLanes <= width; j += kLanes) store_vector(to + j, load_vector<V>(from + j));
      if (width % kLanes) store_vector(to + width - kLanes, load_vector<V>(from + width - kLanes));
    } else if (width >= kLanes / 2) {
      store_vector(to, load_vector<Half>(from));
      store_vector(to + width - kLanes / 2, load_vector<Half>(from + width - kLanes / 2));
    } else {
      for (std::int64_t j = 0; j < width; ++j) to[j] = from[j];
    }
  }
}

/// The panels of `columns` columns, `width` each, one behind the other: pack_rows() for each, with what completes the
/// last vector of the last one. Some rows of all panels at a time, so that memory is read in long runs.
template <typename T>
void pack_row_panels(const T* from, std::int64_t stride, std::int64_t k, std::int64_t columns, std::int64_t width,
                     std::int64_t lanes, T* to) {
  using V = typename PackVector<T>::type;
  constexpr std::int64_t kLanes = PackVector<T>::kLanes, kRows = 8;
  const std::int64_t whole = width % kLanes == 0 ? columns / width * width : 0;
  for (std::int64_t first = 0; first < k && whole > 0; first += kRows) {
    const std::int64_t end = first + kRows < k ? first + kRows : k;
    for (std::int64_t column = 0; column < whole; column += width)
      for (std::int64_t p = first; p < end; ++p)
        for (std::int64_t j = 0; j < width; j += kLanes) {
          __builtin_prefetch(from + (p + kRows) * stride + column + j);
          store_vector(to + column * k + p * width + j, load_vector<V>(from + p * stride + column + j));
        }
  }
  for (std::int64_t column = whole; column < columns; column += width) {
    const std::int64_t rest = columns - column < width ? columns - column : width;
    pack_rows(from + column, stride, k, rest, (rest + lanes - 1) / lanes * lanes, to + column * k);
  }
}

/// to[i * (k + kGap) + p] = from[i * stride + p] for i < rows and p < k.
template <typename T>
void copy_rows(const T* from, std::int64_t stride, std::int64_t rows, std::int64_t k, T* to) {
  for (std::int64_t i = 0; i < rows; ++i)
    std::memcpy(to + i * (k + kGap), from + i * stride, static_cast<std::size_t>(k) * sizeof(T));
}

}  // namespace lockstep::cpu::gemm_detail
