// Matrix products by the names of their shapes.

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

Tensor product(const Tensor& a, const Tensor& b, int dims_a, int dims_b, const char* op, const char* what) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[{}] a tensor is undefined", op);
  LOCKSTEP_CHECK(a.dim() == dims_a && b.dim() == dims_b, "[{}] expected {}, found shapes {} and {}", op, what,
                 to_string(a.sizes()), to_string(b.sizes()));
  return matmul(a, b);
}

/// x * factor; integers stay integers under whole factors.
Tensor times(const Tensor& x, double factor) {
  if (factor == 1.0) return x;
  const bool whole = !x.is_floating_point() && Scalar(factor).is_whole();
  return whole ? x * static_cast<std::int64_t>(factor) : x * factor;
}

Tensor plus_product(const Tensor& x, const Tensor& product, double beta, double alpha) {
  const Tensor scaled = times(product, alpha);
  return beta == 0.0 ? scaled : times(x, beta) + scaled;
}

}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) {
  return product(a, b, 2, 2, "mm", "two matrices");
}
Tensor bmm(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(!a.defined() || !b.defined() || a.dim() != 3 || b.dim() != 3 || a.size(0) == b.size(0),
                 "[bmm] expected batches of one size, found shapes {} and {}", to_string(a.sizes()),
                 to_string(b.sizes()));
  return product(a, b, 3, 3, "bmm", "two batches of matrices");
}
Tensor mv(const Tensor& a, const Tensor& b) {
  return product(a, b, 2, 1, "mv", "a matrix and a vector");
}
Tensor dot(const Tensor& a, const Tensor& b) {
  return product(a, b, 1, 1, "dot", "two vectors");
}
Tensor outer(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.dim() == 1 && b.dim() == 1, "[outer] expected two vectors, found shapes {} and {}",
                 to_string(a.sizes()), to_string(b.sizes()));
  return a.unsqueeze(1) * b;
}
Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return plus_product(x, product(a, b, 2, 2, "addmm", "two matrices"), beta, alpha);
}
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return plus_product(x, bmm(a, b), beta, alpha);
}

}  // namespace lockstep
