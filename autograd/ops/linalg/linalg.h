#pragma once

#include <optional>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep {

/// Linear algebra of small matrices, float32 or float64, as torch.linalg: each matrix is computed by one thread of the
/// CPU in double, in a fixed order, and rounded once; matrices on another device are copied to the CPU, results back.
/// All throw Error for other dtypes, and those of matrices [..., n, n] for others.
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
/// The determinant, whose gradient is that of a polynomial, for singular matrices as well; their second derivatives
/// are infinite or NaN where two singular values are equal.
Tensor det(const Tensor& a);
/// The lower triangular L with L L^T = a, of which the lower triangle is read. Throws Error, naming the matrix, if it
/// is not positive definite. The gradient is symmetric.
Tensor cholesky(const Tensor& a);
/// solve() for the upper or lower triangle of a, whose other elements are not looked at; with `unitriangular` its
/// diagonal neither, which counts as ones. Not `left`: the X of X a = b. Throws Error as solve().
Tensor solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool left = true, bool unitriangular = false);

/// What qr() gives: `const auto [q, r] = linalg::qr(a);`
struct QAndR {
  Tensor q;  ///< [..., m, k], of orthonormal columns
  Tensor r;  ///< [..., k, n], zero below its diagonal
};

/// a = q r for matrices [..., m, n], by Householder's reflections, with the signs that LAPACK gives. `mode`: "reduced"
/// for k = min(m, n), "complete" for k = m, "r" for r alone, with an undefined q. Gradients need a reduced or square q
/// and, of the first columns, independent ones: else Error in backward(). Throws Error for other modes.
QAndR qr(const Tensor& a, std::string_view mode = "reduced");

/// What eigh() gives: `const auto [eigenvalues, eigenvectors] = linalg::eigh(a);`
struct Eigenpairs {
  Tensor eigenvalues;   ///< [..., n], rising
  Tensor eigenvectors;  ///< [..., n, n], the columns, of length 1; which of two signs one has is not said
};

/// Eigenvalues and eigenvectors of symmetric matrices [..., n, n]. `triangle`: "L" or "U", the half that is read. The
/// gradient is symmetric; that of eigenvectors is infinite or NaN where two eigenvalues are equal. Throws Error for
/// values that are not finite and for other triangles.
Eigenpairs eigh(const Tensor& a, std::string_view triangle = "L");
/// The eigenvalues alone, whose gradients are finite everywhere.
Tensor eigvalsh(const Tensor& a, std::string_view triangle = "L");

/// What svd() gives: `const auto [u, s, vh] = linalg::svd(a);`
struct SingularValues {
  Tensor u;   ///< [..., m, k], of orthonormal columns
  Tensor s;   ///< [..., k], falling, at least 0
  Tensor vh;  ///< [..., k, n], of orthonormal rows
};

/// a = u diag(s) vh for matrices [..., m, n] and k = min(m, n), by Jacobi's rotations. With `full_matrices`, u is
/// [..., m, m] and vh [..., n, n]: what that adds has no gradient. Which of two signs a pair of vectors has is not
/// said. Gradients of u and vh are infinite or NaN where two singular values are equal. Throws Error for values that
/// are not finite.
SingularValues svd(const Tensor& a, bool full_matrices = true);
/// The singular values alone, whose gradients are finite everywhere.
Tensor svdvals(const Tensor& a);

/// The pseudoinverse [..., n, m] of matrices [..., m, n]: singular values up to `rtol` times the
/// largest count as 0; by default max(m, n) times the dtype's epsilon. The gradient holds while the rank does not
/// change. Throws Error as svd().
Tensor pinv(const Tensor& a, std::optional<double> rtol = std::nullopt);
/// How many singular values exceed pinv()'s bound, int64 [...].
Tensor matrix_rank(const Tensor& a, std::optional<double> rtol = std::nullopt);
/// The x [..., n, k] of smallest length that makes a x - b [..., m, k] shortest, column by column, as the solution of
/// torch.linalg.lstsq: pinv(a) b. A b [m] gives an x [n].
Tensor lstsq(const Tensor& a, const Tensor& b, std::optional<double> rtol = std::nullopt);
/// The largest singular value over the smallest, [...]: infinite for singular matrices, 0 for those without elements.
Tensor cond(const Tensor& a);

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

/// The logarithm of the determinant: -infinity for a singular matrix, NaN, and no slope, for a determinant below 0.
Tensor logdet(const Tensor& a);

/// linalg::pinv() by PyTorch's older name.
inline Tensor pinverse(const Tensor& a, double rtol = 1e-15) {
  return linalg::pinv(a, rtol);
}

}  // namespace lockstep
