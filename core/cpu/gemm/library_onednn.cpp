#include "lockstep/core/cpu/gemm/library_onednn.h"

#include <algorithm>
#include <dnnl.hpp>

#include "lockstep/core/cpu/one_openmp_thread.h"
#include "lockstep/core/cpu/signals_held.h"

namespace lockstep::cpu::gemm_detail {
namespace {

// Measured: with AVX-512 oneDNN's products are 5 to 20 % faster than OpenBLAS's, except small or very thin ones; with
// AVX2 OpenBLAS's are the faster.
bool is_best(std::int64_t m, std::int64_t n, std::int64_t k) {
  static const bool wide = [] {
    const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
    return isa == dnnl::cpu_isa::avx512_core || isa == dnnl::cpu_isa::avx512_core_vnni ||
           isa == dnnl::cpu_isa::avx512_core_bf16 || isa == dnnl::cpu_isa::avx512_core_amx;
  }();
  constexpr std::int64_t kSmallest = std::int64_t{1} << 20;
  return wide && std::min(m, n) >= 16 && m * n * k > kSmallest;
}

char transposed(bool yes) {
  return yes ? 'T' : 'N';
}

}  // namespace

bool onednn_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                  const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                  std::int64_t ldc) {
  if (!is_best(m, n, k)) return false;
  const OneOpenmpThread guard;
  const SignalsHeld held;
  return dnnl::sgemm(transposed(transpose_a), transposed(transpose_b), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc) ==
         dnnl::status::success;
}

}  // namespace lockstep::cpu::gemm_detail
