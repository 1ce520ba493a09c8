#pragma once

#include <cstdint>

#include "lockstep/core/tensor.h"

namespace lockstep::detail {

// All contiguous, of one dtype, float32 or float64, with elements. `failed` receives the number of the first matrix for
// which there is no result, -1 if there is none.

/// x [m, n, k] with a x = b, for a [m, n, n] and b [m, n, k].
using LinalgSolveKernel = void(const Tensor& a, const Tensor& b, const Tensor& x, std::int64_t& failed);
LinalgSolveKernel linalg_solve_cpu;

/// sign [m] and logabs [m] of the determinants of a [m, n, n].
using LinalgSlogdetKernel = void(const Tensor& a, const Tensor& sign, const Tensor& logabs);
LinalgSlogdetKernel linalg_slogdet_cpu;

/// The determinants det [m] of a [m, n, n].
using LinalgDetKernel = void(const Tensor& a, const Tensor& det);
LinalgDetKernel linalg_det_cpu;

/// The lower triangular factors l [m, n, n].
using LinalgCholeskyKernel = void(const Tensor& a, const Tensor& l, std::int64_t& failed);
LinalgCholeskyKernel linalg_cholesky_cpu;

/// q [b, m, k] and r [b, k, n] of a [b, m, n], for k of min(m, n) or m. q may be undefined.
using LinalgQrKernel = void(const Tensor& a, const Tensor& q, const Tensor& r);
LinalgQrKernel linalg_qr_cpu;

/// values [b, n], rising, and vectors [b, n, n], columns, of the symmetric matrices whose lower (or upper) triangles
/// are those of a [b, n, n]. A matrix fails that is not finite.
using LinalgEighKernel = void(const Tensor& a, bool upper, const Tensor& values, const Tensor& vectors,
                              std::int64_t& failed);
LinalgEighKernel linalg_eigh_cpu;

/// u [b, m, k], s [b, k], falling, and vh [b, k, n] of a [b, m, n], for k = min(m, n). A matrix fails that is not
/// finite.
using LinalgSvdKernel = void(const Tensor& a, const Tensor& u, const Tensor& s, const Tensor& vh, std::int64_t& failed);
LinalgSvdKernel linalg_svd_cpu;

}  // namespace lockstep::detail
