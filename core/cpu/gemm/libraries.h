#pragma once

#include "lockstep/core/cpu/gemm/gemm.h"

namespace lockstep::cpu::gemm_detail {

/// gemm() by oneDNN and BLAS, or Eigen: cut into blocks by sizes alone, each computed by one single-threaded call
/// (Note [GEMM blocks]). Arguments are checked by the caller.
void multiply_libraries(const Gemm<float>& problem);
void multiply_libraries(const Gemm<double>& problem);

/// "OpenBLAS ...", "Eigen 3.4.0". Throws Error if there is no BLAS at run time, though the build had one; so do
/// products.
const char* library_name();

/// One block, on the calling thread, by the library's own routine (library_blas.cpp or library_eigen.cpp):
/// c = alpha * op(a) * op(b) + beta * c, row-major.
void library_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                   const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                   std::int64_t ldc);
void library_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                   const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
                   std::int64_t ldc);

}  // namespace lockstep::cpu::gemm_detail
