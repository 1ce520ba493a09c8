#pragma once

// Operands of a product, copied into panels: what a micro-kernel reads lies together, in the order it is read. For .cpp
// files only.

#include <cstdint>
#include <cstring>

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

/// to[p * padded + j] = from[p * stride + j] for p < k and j < width; 0 for width <= j < padded.
template <typename T>
void pack_rows(const T* from, std::int64_t stride, std::int64_t k, std::int64_t width, std::int64_t padded, T* to) {
  using V = typename PackVector<T>::type;
  typedef T Half __attribute__((vector_size(16)));
  constexpr std::int64_t kLanes = PackVector<T>::kLanes;
  if (width < padded) std::memset(to, 0, static_cast<std::size_t>(k * padded) * sizeof(T));
  for (std::int64_t p = 0; p < k; ++p, from += stride, to += padded) {
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

/// to[p * to_stride + j] = from[j * stride + p] for p and j below the lanes of a vector. Rows from `rows` on count as
/// 0. Halves of two rows are joined while loading, so that what is left are shuffles within halves.
[[gnu::always_inline]] inline void transpose_square(const float* from, std::int64_t stride, int rows, float* to,
                                                    std::int64_t to_stride) {
  using V = PackVector<float>::type;
  typedef float Half __attribute__((vector_size(16)));
#pragma GCC unroll 2
  for (int h = 0; h < 8; h += 4) {
    V r[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const Half low = i < rows ? load_vector<Half>(from + i * stride + h) : Half{};
      const Half high = i + 4 < rows ? load_vector<Half>(from + (i + 4) * stride + h) : Half{};
      r[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
    }
    const V even0 = __builtin_shufflevector(r[0], r[1], 0, 8, 1, 9, 4, 12, 5, 13);
    const V odd0 = __builtin_shufflevector(r[0], r[1], 2, 10, 3, 11, 6, 14, 7, 15);
    const V even1 = __builtin_shufflevector(r[2], r[3], 0, 8, 1, 9, 4, 12, 5, 13);
    const V odd1 = __builtin_shufflevector(r[2], r[3], 2, 10, 3, 11, 6, 14, 7, 15);
    to += h * to_stride;
    store_vector<V>(to, __builtin_shufflevector(even0, even1, 0, 1, 8, 9, 4, 5, 12, 13));
    store_vector<V>(to + to_stride, __builtin_shufflevector(even0, even1, 2, 3, 10, 11, 6, 7, 14, 15));
    store_vector<V>(to + 2 * to_stride, __builtin_shufflevector(odd0, odd1, 0, 1, 8, 9, 4, 5, 12, 13));
    store_vector<V>(to + 3 * to_stride, __builtin_shufflevector(odd0, odd1, 2, 3, 10, 11, 6, 7, 14, 15));
  }
}
[[gnu::always_inline]] inline void transpose_square(const double* from, std::int64_t stride, int rows, double* to,
                                                    std::int64_t to_stride) {
  using V = PackVector<double>::type;
  typedef double Half __attribute__((vector_size(16)));
#pragma GCC unroll 2
  for (int h = 0; h < 4; h += 2) {
    V r[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const Half low = i < rows ? load_vector<Half>(from + i * stride + h) : Half{};
      const Half high = i + 2 < rows ? load_vector<Half>(from + (i + 2) * stride + h) : Half{};
      r[i] = __builtin_shufflevector(low, high, 0, 1, 2, 3);
    }
    store_vector<V>(to + h * to_stride, __builtin_shufflevector(r[0], r[1], 0, 4, 2, 6));
    store_vector<V>(to + (h + 1) * to_stride, __builtin_shufflevector(r[0], r[1], 1, 5, 3, 7));
  }
}

/// to[p * padded + j] = from[j * stride + p] for p < k and j < width; 0 for width <= j < padded.
template <typename T>
void pack_columns(const T* from, std::int64_t stride, std::int64_t k, std::int64_t width, std::int64_t padded, T* to) {
  constexpr std::int64_t kLanes = PackVector<T>::kLanes;
  if (padded < kLanes && width == padded && k > 2 * kLanes) {
    // A square's rows are longer than the panel's: what is too much is overwritten by the next row. The last ones,
    // which have no such room, are copied one by one.
    const std::int64_t whole = (k - kLanes) / kLanes * kLanes;
    for (std::int64_t p = 0; p < whole; p += kLanes)
      transpose_square(from + p, stride, static_cast<int>(width), to + p * padded, padded);
    from += whole;
    to += whole * padded;
    k -= whole;
  }
  if (k < kLanes || padded < kLanes) {
    for (std::int64_t p = 0; p < k; ++p) {
      for (std::int64_t j = 0; j < width; ++j) to[p * padded + j] = from[j * stride + p];
      for (std::int64_t j = width; j < padded; ++j) to[p * padded + j] = 0;
    }
    return;
  }
  const std::int64_t written = width < kLanes ? kLanes : width;
  if (written < padded) std::memset(to, 0, static_cast<std::size_t>(k * padded) * sizeof(T));
  // Squares of vectors; the last ones lie over their neighbours where the sizes are no multiples. Two squares, a line
  // of the cache, from each row in turn: what is written stays near.
  constexpr std::int64_t kLine = 2 * kLanes;
  for (std::int64_t line = 0; line < k; line += kLine)
    for (std::int64_t first = 0; first < width; first += kLanes) {
      const std::int64_t j = first + kLanes <= width || width < kLanes ? first : width - kLanes;
      for (std::int64_t next = line; next < line + kLine && next < k; next += kLanes) {
        const std::int64_t p = next + kLanes <= k ? next : k - kLanes;
        const T* square = from + j * stride + p;
        T* out = to + p * padded + j;
        if (width >= kLanes)
          transpose_square(square, stride, kLanes, out, padded);
        else
          transpose_square(square, stride, static_cast<int>(width), out, padded);
      }
    }
}

}  // namespace lockstep::cpu::gemm_detail
