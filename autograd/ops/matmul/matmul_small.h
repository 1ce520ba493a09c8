#pragma once

// Many products of a few elements each, on the CPU. For .cpp files only.

#include <cmath>
#include <cstdint>

#include "lockstep/core/vector_math.h"

namespace lockstep::matmul_small {

inline constexpr std::int64_t kMost = 4;         // rows, columns and steps of a product, or all but one of these
inline constexpr std::int64_t kMostLong = 64;    // rows or columns, if the others are few
inline constexpr std::int64_t kMostSteps = 512;  // of one element: one block of Note [Order of a product]

/// Whether products of these sizes take less time here than a call of gemm().
inline bool serves(std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m == 1 && n == 1) return k <= kMostSteps;
  return k <= kMost && ((m <= kMostLong && n <= kMost) || (m <= kMost && n <= kMostLong));
}

/// An operand of each of the products: element (i, j) of product p is data[p * product + i * row + j * column].
template <typename T>
struct Operands {
  const T* data;
  std::int64_t product, row, column;
};

/// Elements are chains of fused multiply-adds from 0 on, as those of gemm(), with its bits.
template <int kColumns, int kSteps, typename T>
void multiply_few(const Operands<T>& a, const Operands<T>& b, std::int64_t m, std::int64_t count, T* out) {
  for (std::int64_t p = 0; p < count; ++p) {
    const T *const x = a.data + p * a.product, *const y = b.data + p * b.product;
    T right[kSteps][kColumns];
    for (int k = 0; k < kSteps; ++k)
      for (int j = 0; j < kColumns; ++j) right[k][j] = y[k * b.row + j * b.column];
    for (std::int64_t i = 0; i < m; ++i, out += kColumns) {
      T sums[kColumns] = {};
      for (int k = 0; k < kSteps; ++k) {
        const T left = x[i * a.row + k * a.column];
        for (int j = 0; j < kColumns; ++j) sums[j] = std::fma(left, right[k][j], sums[j]);
      }
      for (int j = 0; j < kColumns; ++j) out[j] = sums[j];
    }
  }
}

/// The same with more columns, along which vectors run.
template <int kSteps, typename T>
void multiply_long(const Operands<T>& a, const Operands<T>& b, std::int64_t m, std::int64_t n, std::int64_t count,
                   T* out) {
  for (std::int64_t p = 0; p < count; ++p) {
    const T *const x = a.data + p * a.product, *const y = b.data + p * b.product;
    for (std::int64_t i = 0; i < m; ++i, out += n) {
      T left[kSteps];
      for (int k = 0; k < kSteps; ++k) left[k] = x[i * a.row + k * a.column];
      const auto element = [&](std::int64_t j, std::int64_t column) {
        T sum = 0;
        for (int k = 0; k < kSteps; ++k) sum = std::fma(left[k], y[k * b.row + j * column], sum);
        return sum;
      };
      if (b.column == 1) {
        LOCKSTEP_VECTORIZE
        for (std::int64_t j = 0; j < n; ++j) out[j] = element(j, 1);
      } else {
        for (std::int64_t j = 0; j < n; ++j) out[j] = element(j, b.column);
      }
    }
  }
}

/// The same for rows times columns, some at a time: a chain waits for each of its sums.
template <typename T>
void multiply_rows(const Operands<T>& a, const Operands<T>& b, std::int64_t steps, std::int64_t count, T* out) {
  constexpr std::int64_t kTogether = 8;
  std::int64_t p = 0;
  for (; p + kTogether <= count; p += kTogether) {
    const T *x = a.data + p * a.product, *y = b.data + p * b.product;
    T sums[kTogether] = {};
    for (std::int64_t k = 0; k < steps; ++k, x += a.column, y += b.row)
      for (std::int64_t l = 0; l < kTogether; ++l) sums[l] = std::fma(x[l * a.product], y[l * b.product], sums[l]);
    for (std::int64_t l = 0; l < kTogether; ++l) out[p + l] = sums[l];
  }
  for (; p < count; ++p) {
    const T *x = a.data + p * a.product, *y = b.data + p * b.product;
    T sum = 0;
    for (std::int64_t k = 0; k < steps; ++k) sum = std::fma(x[k * a.column], y[k * b.row], sum);
    out[p] = sum;
  }
}

/// out [count, m, n] = the products a [m, k] b [k, n], where serves().
template <typename T>
void multiply(const Operands<T>& a, const Operands<T>& b, std::int64_t m, std::int64_t n, std::int64_t k,
              std::int64_t count, T* out) {
  if (m == 1 && n == 1) return multiply_rows(a, b, k, count, out);
  if (n > kMost) {
    using Long = void (*)(const Operands<T>&, const Operands<T>&, std::int64_t, std::int64_t, std::int64_t, T*);
    constexpr Long kLong[kMost] = {multiply_long<1, T>, multiply_long<2, T>, multiply_long<3, T>, multiply_long<4, T>};
    return kLong[k - 1](a, b, m, n, count, out);
  }
  using Few = void (*)(const Operands<T>&, const Operands<T>&, std::int64_t, std::int64_t, T*);
  constexpr Few kFew[kMost][kMost] = {
      {multiply_few<1, 1, T>, multiply_few<1, 2, T>, multiply_few<1, 3, T>, multiply_few<1, 4, T>},
      {multiply_few<2, 1, T>, multiply_few<2, 2, T>, multiply_few<2, 3, T>, multiply_few<2, 4, T>},
      {multiply_few<3, 1, T>, multiply_few<3, 2, T>, multiply_few<3, 3, T>, multiply_few<3, 4, T>},
      {multiply_few<4, 1, T>, multiply_few<4, 2, T>, multiply_few<4, 3, T>, multiply_few<4, 4, T>}};
  kFew[n - 1][k - 1](a, b, m, count, out);
}

}  // namespace lockstep::matmul_small
