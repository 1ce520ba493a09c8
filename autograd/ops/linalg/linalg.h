#pragma once

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Linear algebra of small matrices [..., n, n], float32 or float64, on the CPU, as torch.linalg: each matrix is
/// computed by one thread in double, in a fixed order, and rounded once. All throw Error for matrices that are not
/// square, and for other dtypes.
namespace linalg {

/// What slogdet() gives: `const auto [sign, logabsdet] = linalg::slogdet(a);`
struct SignAndLogDet {
  Tensor sign;       ///< 1, -1 or 0, without gradient
  Tensor logabsdet;  ///< logarithm of the determinant's magnitude, -infinity for a singular matrix
};

/// The X of a X = b, for b [..., n, k], or [n] for one matrix; leading dimensions broadcast. By elimination with
/// partial pivoting. Throws Error for a singular matrix.
Tensor solve(const Tensor& a, const Tensor& b);
/// The inverse. Throws Error for a singular matrix.
Tensor inv(const Tensor& a);
/// Sign and logarithm of the determinant; the gradient of a singular matrix throws Error in backward().
SignAndLogDet slogdet(const Tensor& a);
/// The determinant, as slogdet().
Tensor det(const Tensor& a);
/// The lower triangular L with L L^T = a, of which the lower triangle is read. Throws Error, naming the matrix, if it
/// is not positive definite. The gradient is symmetric.
Tensor cholesky(const Tensor& a);
/// solve() for the upper or lower triangle of a, whose other elements are not looked at; with `unitriangular` its
/// diagonal neither, which counts as ones. Not `left`: the X of X a = b. Throws Error as solve().
Tensor solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool left = true, bool unitriangular = false);

}  // namespace linalg

/// The X of l l^T X = b, for l of linalg::cholesky(), or of l^T l X = b for an upper triangle, as torch.cholesky_solve.
Tensor cholesky_solve(const Tensor& b, const Tensor& l, bool upper = false);

/// linalg::inv() by PyTorch's older name.
inline Tensor inverse(const Tensor& a) {
  return linalg::inv(a);
}
/// linalg::slogdet() by PyTorch's older name.
inline linalg::SignAndLogDet slogdet(const Tensor& a) {
  return linalg::slogdet(a);
}
/// linalg::det() by PyTorch's older name.
inline Tensor det(const Tensor& a) {
  return linalg::det(a);
}

}  // namespace lockstep
