// library_block() by a CBLAS library: OpenBLAS (any threading flavour) or BLIS.

#include <cblas.h>
#include <dlfcn.h>

#include <string>

#include "lockstep/core/check.h"
#include "lockstep/core/cpu/gemm/libraries.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// Note [BLAS at first use]
// The library is opened when it is asked for the first time, not linked: OpenBLAS starts threads and takes memory as
// soon as it is loaded, so that every program would pay for it, while our own kernels compute the products. Where the
// address space is limited (ulimit -v) its threads can wait for memory for good, and the end of the program for them.
// It is looked for as a linked one would be; the build names it by its full path if the linker does not look in its
// folder by itself.
struct Blas {
  decltype(&cblas_sgemm) sgemm = nullptr;
  decltype(&cblas_dgemm) dgemm = nullptr;
  void (*set_threads)(int) = nullptr;             // for the process, OpenBLAS
  void (*set_threads_of_thread)(long) = nullptr;  // for the thread in some versions, BLIS
  std::string name = "CBLAS";
};

template <typename F>
void find(void* library, const char* name, F*& function) {
  function = reinterpret_cast<F*>(dlsym(library, name));
}

Blas open() {
  const std::string file = LOCKSTEP_BLAS_FILE;
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  const char* error = library ? nullptr : dlerror();
  const std::string why = error ? error : "";
  if (!library) library = dlopen(file.substr(file.rfind('/') + 1).c_str(), RTLD_NOW | RTLD_LOCAL);
  LOCKSTEP_CHECK(library,
                 "LOCKSTEP_KERNELS=libraries needs the BLAS that lockstep was built with, {}, which cannot be opened: "
                 "{}; install it, set LD_LIBRARY_PATH to its folder, or unset LOCKSTEP_KERNELS",
                 file, why);
  Blas blas;
  find(library, "cblas_sgemm", blas.sgemm);
  find(library, "cblas_dgemm", blas.dgemm);
  LOCKSTEP_CHECK(blas.sgemm && blas.dgemm,
                 "LOCKSTEP_KERNELS=libraries needs the functions cblas_sgemm and cblas_dgemm, which {} does not have; "
                 "install OpenBLAS or BLIS, or unset LOCKSTEP_KERNELS",
                 file);
  find(library, "openblas_set_num_threads", blas.set_threads);
  find(library, "bli_thread_set_num_threads", blas.set_threads_of_thread);
  const char* (*text)() = nullptr;
  find(library, "openblas_get_config", text);
  if (text) {
    blas.name = text();
  } else {
    find(library, "bli_info_get_version_str", text);
    if (text) blas.name = std::string("BLIS ") + text();
  }
  if (blas.set_threads) blas.set_threads(1);
  return blas;
}

// Our thread pool is the only one: each library call runs on its calling thread. OpenBLAS keeps one setting for the
// process, some versions of BLIS one per thread, so every thread sets it once.
const Blas& blas() {
  static const Blas opened = open();
  static thread_local const bool once_per_thread = [] {
    if (opened.set_threads_of_thread) opened.set_threads_of_thread(1);
    return true;
  }();
  (void)once_per_thread;
  return opened;
}

CBLAS_TRANSPOSE transposed(bool yes) {
  return yes ? CblasTrans : CblasNoTrans;
}

}  // namespace

void library_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                   const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                   std::int64_t ldc) {
  blas().sgemm(CblasRowMajor, transposed(transpose_a), transposed(transpose_b), static_cast<int>(m),
               static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb),
               beta, c, static_cast<int>(ldc));
}

void library_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, double alpha,
                   const double* a, std::int64_t lda, const double* b, std::int64_t ldb, double beta, double* c,
                   std::int64_t ldc) {
  blas().dgemm(CblasRowMajor, transposed(transpose_a), transposed(transpose_b), static_cast<int>(m),
               static_cast<int>(n), static_cast<int>(k), alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb),
               beta, c, static_cast<int>(ldc));
}

const char* library_name() {
  return blas().name.c_str();
}

}  // namespace lockstep::cpu::gemm_detail
