// library_block() by a CBLAS library: OpenBLAS (any threading flavour) or BLIS.

#include <cblas.h>

#include <string>

#include "lockstep/core/cpu/gemm/libraries.h"

// Weak, so that one source serves every library: a symbol the library lacks is null.
extern "C" {
__attribute__((weak)) void openblas_set_num_threads(int count);
__attribute__((weak)) char* openblas_get_config(void);
__attribute__((weak)) void bli_thread_set_num_threads(long count);
__attribute__((weak)) const char* bli_info_get_version_str(void);
}

namespace lockstep::cpu::gemm_detail {
namespace {

// Our thread pool is the only one: each library call runs on its calling thread. OpenBLAS keeps one setting for the
// process, some versions of BLIS one per thread, so every thread sets it once.
void run_single_threaded() {
  static const bool once = [] {
    if (openblas_set_num_threads) openblas_set_num_threads(1);
    return true;
  }();
  static thread_local const bool once_per_thread = [] {
    if (bli_thread_set_num_threads) bli_thread_set_num_threads(1);
    return true;
  }();
  (void)once;
  (void)once_per_thread;
}

CBLAS_TRANSPOSE transposed(bool yes) {
  return yes ? CblasTrans : CblasNoTrans;
}

}  // namespace

void library_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                   const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                   std::int64_t ldc) {
  run_single_threaded();
  cblas_sgemm(CblasRowMajor, transposed(transpose_a), transposed(transpose_b), static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb), beta, c,
              static_cast<int>(ldc));
}

void library_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                   const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
                   std::int64_t ldc) {
  run_single_threaded();
  cblas_dgemm(CblasRowMajor, transposed(transpose_a), transposed(transpose_b), static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb), beta, c,
              static_cast<int>(ldc));
}

const char* library_name() {
  static const std::string name = [] {
    if (openblas_get_config) return std::string(openblas_get_config());
    if (bli_info_get_version_str) return "BLIS " + std::string(bli_info_get_version_str());
    return std::string("CBLAS");
  }();
  return name.c_str();
}

}  // namespace lockstep::cpu::gemm_detail
