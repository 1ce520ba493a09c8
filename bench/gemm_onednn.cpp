#include <dnnl.hpp>

#include "bench/gemm_peers.h"

extern "C" __attribute__((weak)) void omp_set_num_threads(int count);

namespace gemm_peers {

void onednn_threads(int threads) {
  if (omp_set_num_threads) omp_set_num_threads(threads);
}

bool onednn(const Product& p) {
  return dnnl::sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, p.a, p.lda(), p.b,
                     p.ldb(), 0.0f, p.c, p.n) == dnnl::status::success;
}

std::string onednn_name() {
  const dnnl_version_t* version = dnnl_version();
  return "oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
         std::to_string(version->patch) + ", isa " + std::to_string(static_cast<int>(dnnl::get_effective_cpu_isa()));
}

}  // namespace gemm_peers
