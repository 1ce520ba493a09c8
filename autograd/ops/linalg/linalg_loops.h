#pragma once

// What the kernels share. For .cpp files only.

#include <atomic>
#include <cstdint>

#include "lockstep/core/tensor.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::detail {

/// f(double or float) for the dtype of `x`.
template <typename F>
void by_dtype(const Tensor& x, F&& f) {
  if (x.dtype() == kFloat64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

/// Calls f(begin, end) for ranges of `count` matrices, whose work is that of n x n; they depend on the sizes alone. One
/// matrix alone has all threads for its products.
template <typename F>
void for_ranges_of_matrices(std::int64_t count, std::int64_t n, F&& f) {
  if (count == 1) return f(0, 1);
  lockstep::parallel_for(count, 65536 / (n * n * n + 1) + 1, f);
}
/// Calls f(i) for each of them.
template <typename F>
void for_each_matrix(std::int64_t count, std::int64_t n, F&& f) {
  for_ranges_of_matrices(count, n, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) f(i);
  });
}

/// Keeps the smallest number of a matrix that failed.
inline void note_failure(std::atomic<std::int64_t>& first, std::int64_t i) {
  std::int64_t seen = first.load();
  while ((seen < 0 || i < seen) && !first.compare_exchange_weak(seen, i)) {
  }
}

}  // namespace lockstep::detail
