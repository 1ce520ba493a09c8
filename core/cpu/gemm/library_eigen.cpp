// library_block() by Eigen, for builds without a BLAS.

#include <Eigen/Core>

#include "lockstep/core/cpu/gemm/libraries.h"

#define LOCKSTEP_STRING_OF(value) #value
#define LOCKSTEP_STRING(value) LOCKSTEP_STRING_OF(value)

namespace lockstep::cpu::gemm_detail {
namespace {

template <typename T>
void block_impl(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, T alpha, const T* a,
                std::int64_t lda, const T* b, std::int64_t ldb, T beta, T* c, std::int64_t ldc) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using Stride = Eigen::OuterStride<>;
  const Eigen::Map<const Matrix, 0, Stride> map_a(a, transpose_a ? k : m, transpose_a ? m : k, Stride(lda));
  const Eigen::Map<const Matrix, 0, Stride> map_b(b, transpose_b ? n : k, transpose_b ? k : n, Stride(ldb));
  Eigen::Map<Matrix, 0, Stride> map_c(c, m, n, Stride(ldc));
  if (beta == T(0))
    map_c.setZero();
  else if (beta != T(1))
    map_c *= beta;
  if (transpose_a && transpose_b)
    map_c.noalias() += alpha * map_a.transpose() * map_b.transpose();
  else if (transpose_a)
    map_c.noalias() += alpha * map_a.transpose() * map_b;
  else if (transpose_b)
    map_c.noalias() += alpha * map_a * map_b.transpose();
  else
    map_c.noalias() += alpha * map_a * map_b;
}

}  // namespace

void library_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                   const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                   std::int64_t ldc) {
  block_impl(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void library_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                   const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
                   std::int64_t ldc) {
  block_impl(transpose_a, transpose_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

const char* library_name() {
  return "Eigen " LOCKSTEP_STRING(EIGEN_WORLD_VERSION) "." LOCKSTEP_STRING(EIGEN_MAJOR_VERSION) "." LOCKSTEP_STRING(
      EIGEN_MINOR_VERSION);
}

}  // namespace lockstep::cpu::gemm_detail
