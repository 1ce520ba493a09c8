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
  constexpr std::int64_t kLanes = PackVector<T>::kLanes;
  for (std::int64_t p = 0; p < k; ++p, from += stride, to += padded) {
    if (width >= kLanes) {
      for (std::int64_t j = 0; j + kLanes <= width; j += kLanes) store_vector(to + j, load_vector<V>(from + j));
      if (width % kLanes) store_vector(to + width - kLanes, load_vector<V>(from + width - kLanes));
    } else {
      for (std::int64_t j = 0; j < width; ++j) to[j] = from[j];
    }
    for (std::int64_t j = width; j < padded; ++j) to[j] = 0;
  }
}

/// The square of vectors `rows`, transposed, to rows of `to` that are `stride` apart.
[[gnu::always_inline]] inline void store_transposed(const PackVector<float>::type (&r)[8], float* to,
                                                    std::int64_t stride) {
  using V = PackVector<float>::type;
  V pair[8], four[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pair[i] = __builtin_shufflevector(r[i], r[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
    pair[i + 1] = __builtin_shufflevector(r[i], r[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    four[i] = __builtin_shufflevector(pair[i], pair[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
    four[i + 1] = __builtin_shufflevector(pair[i], pair[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
    four[i + 2] = __builtin_shufflevector(pair[i + 1], pair[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
    four[i + 3] = __builtin_shufflevector(pair[i + 1], pair[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    store_vector<V>(to + i * stride, __builtin_shufflevector(four[i], four[i + 4], 0, 1, 2, 3, 8, 9, 10, 11));
    store_vector<V>(to + (i + 4) * stride, __builtin_shufflevector(four[i], four[i + 4], 4, 5, 6, 7, 12, 13, 14, 15));
  }
}
[[gnu::always_inline]] inline void store_transposed(const PackVector<double>::type (&r)[4], double* to,
                                                    std::int64_t stride) {
  using V = PackVector<double>::type;
  const V low0 = __builtin_shufflevector(r[0], r[1], 0, 4, 2, 6), high0 = __builtin_shufflevector(r[0], r[1], 1, 5, 3, 7);
  const V low1 = __builtin_shufflevector(r[2], r[3], 0, 4, 2, 6), high1 = __builtin_shufflevector(r[2], r[3], 1, 5, 3, 7);
  store_vector<V>(to, __builtin_shufflevector(low0, low1, 0, 1, 4, 5));
  store_vector<V>(to + stride, __builtin_shufflevector(high0, high1, 0, 1, 4, 5));
  store_vector<V>(to + 2 * stride, __builtin_shufflevector(low0, low1, 2, 3, 6, 7));
  store_vector<V>(to + 3 * stride, __builtin_shufflevector(high0, high1, 2, 3, 6, 7));
}

/// to[p * padded + j] = from[j * stride + p] for p < k and j < width; 0 for width <= j < padded.
template <typename T>
void pack_columns(const T* from, std::int64_t stride, std::int64_t k, std::int64_t width, std::int64_t padded, T* to) {
  using V = typename PackVector<T>::type;
  constexpr std::int64_t kLanes = PackVector<T>::kLanes;
  if (k < kLanes || padded < kLanes) {
    for (std::int64_t p = 0; p < k; ++p) {
      for (std::int64_t j = 0; j < width; ++j) to[p * padded + j] = from[j * stride + p];
      for (std::int64_t j = width; j < padded; ++j) to[p * padded + j] = 0;
    }
    return;
  }
  // Squares of vectors; the last ones lie over their neighbours where the sizes are no multiples.
  for (std::int64_t first = 0; first < width; first += kLanes) {
    const std::int64_t j = first + kLanes <= width || width < kLanes ? first : width - kLanes;
    const std::int64_t rows = width < kLanes ? width : kLanes;
    for (std::int64_t next = 0; next < k; next += kLanes) {
      const std::int64_t p = next + kLanes <= k ? next : k - kLanes;
      V r[kLanes];
      if (rows == kLanes) {
#pragma GCC unroll 8
        for (int i = 0; i < kLanes; ++i) r[i] = load_vector<V>(from + (j + i) * stride + p);
      } else {
#pragma GCC unroll 8
        for (int i = 0; i < kLanes; ++i) r[i] = i < rows ? load_vector<V>(from + (j + i) * stride + p) : V{};
      }
      store_transposed(r, to + p * padded + j, padded);
    }
  }
  const std::int64_t written = width < kLanes ? kLanes : width;
  if (written < padded)
    for (std::int64_t p = 0; p < k; ++p)
      for (std::int64_t j = written; j < padded; ++j) to[p * padded + j] = 0;
}

}  // namespace lockstep::cpu::gemm_detail
