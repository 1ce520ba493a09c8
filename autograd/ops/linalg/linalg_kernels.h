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

/// The lower triangular factors l [m, n, n].
using LinalgCholeskyKernel = void(const Tensor& a, const Tensor& l, std::int64_t& failed);
LinalgCholeskyKernel linalg_cholesky_cpu;

}  // namespace lockstep::detail
