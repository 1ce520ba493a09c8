#include <cblas.h>

#include "bench/gemm_peers.h"

extern "C" {
__attribute__((weak)) void openblas_set_num_threads(int count);
__attribute__((weak)) char* openblas_get_config(void);
__attribute__((weak)) char* openblas_get_corename(void);
}

namespace gemm_peers {

void blas_threads(int threads) {
  if (openblas_set_num_threads) openblas_set_num_threads(threads);
}

bool blas(const Product& p) {
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans,
              static_cast<int>(p.m), static_cast<int>(p.n), static_cast<int>(p.k), 1.0f, p.a, static_cast<int>(p.lda()),
              p.b, static_cast<int>(p.ldb()), 0.0f, p.c, static_cast<int>(p.n));
  return true;
}

std::string blas_name() {
  std::string name = openblas_get_config ? openblas_get_config() : "CBLAS";
  if (openblas_get_corename) name += std::string(", running ") + openblas_get_corename();
  return name;
}

}  // namespace gemm_peers
