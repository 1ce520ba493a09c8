#pragma once

// What operations on small matrices [..., rows, columns] share. For .cpp files only.

#include <atomic>
#include <cstdint>

#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::detail {

/// Throws Error unless there are matrices of float32 or float64.
inline void check_matrices(const Tensor& a, const char* op) {
  LOCKSTEP_CHECK(a.defined() && a.dim() >= 2, "[{}] expected matrices, found {}", op,
                 a.defined() ? to_string(a.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(a.dtype() == kFloat32 || a.dtype() == kFloat64, "[{}] expected float32 or float64, found {}", op,
                 name(a.dtype()));
}
/// And unless they are square.
inline void check_square_matrices(const Tensor& a, const char* op) {
  LOCKSTEP_CHECK(a.defined() && a.dim() >= 2 && a.size(-1) == a.size(-2), "[{}] expected square matrices, found {}", op,
                 a.defined() ? to_string(a.sizes()) : "an undefined tensor");
  check_matrices(a, op);
}

/// x [..., r, c] as [m, r, c], contiguous.
inline Tensor as_batch(const Tensor& x) {
  const std::int64_t r = x.size(-2), c = x.size(-1);
  return as_contiguous(x.detach()).view({r * c == 0 ? 0 : x.numel() / (r * c), r, c});
}

inline Shape leading_sizes(const Tensor& x) {
  Shape sizes = x.sizes();
  sizes.erase(sizes.dim() - 1);
  sizes.erase(sizes.dim() - 1);
  return sizes;
}
/// The leading sizes of x, and others behind them.
inline Shape sizes_with(const Tensor& x, std::initializer_list<std::int64_t> last) {
  Shape sizes = leading_sizes(x);
  for (const std::int64_t size : last) sizes.push_back(size);
  return sizes;
}

inline Tensor transposed(const Tensor& x) {
  return x.transpose(-2, -1);
}

/// f(double or float) for the dtype of `x`.
template <typename F>
void by_dtype(const Tensor& x, F&& f) {
  if (x.dtype() == kFloat64)
    f.template operator()<double>();
  else
    f.template operator()<float>();
}

/// Calls f(i) for each of `count` matrices, whose work is that of n x n; the blocks depend on the sizes alone. One
/// alone has all threads for its products.
template <typename F>
void for_each_matrix(std::int64_t count, std::int64_t n, F&& f) {
  if (count == 1) return f(0);
  lockstep::parallel_for(count, 65536 / (n * n * n + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
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
