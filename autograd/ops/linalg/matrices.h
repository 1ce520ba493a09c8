#pragma once

// What the operations on matrices [..., rows, columns] check and give to kernels. For .cpp files only.

#include <cstdint>
#include <initializer_list>

#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/tensor.h"

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

}  // namespace lockstep::detail
