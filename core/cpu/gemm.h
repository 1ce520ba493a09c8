#pragma once

#include <cstdint>

namespace lockstep::cpu {

/// C = alpha * op(A) * op(B) + beta * C, row-major, with op(X) = X or its transpose; op(A) is m x k, op(B) is k x n,
/// and lda, ldb, ldc are the row strides of A, B and C as stored. beta == 0 ignores C's old values (NaN included). Cut
/// into blocks by m, n and k alone, each computed by one single-threaded call of the library underneath, so the result
/// does not depend on the number of threads. Callable from any thread.
void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
          const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c, std::int64_t ldc);
void gemm(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
          const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
          std::int64_t ldc);

/// "OpenBLAS ...", "Eigen 3.4.0": for reports.
const char* gemm_library();

/// One block, on the calling thread: the library's own routine (gemm_blas.cpp or gemm_eigen.cpp).
void gemm_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                std::int64_t ldc);
void gemm_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
                std::int64_t ldc);

}  // namespace lockstep::cpu
