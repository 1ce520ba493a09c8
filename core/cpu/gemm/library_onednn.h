#pragma once

#include <cstdint>

namespace lockstep::cpu::gemm_detail {

/// One block by oneDNN, on the calling thread, if the build has oneDNN and it is the faster library for this processor
/// and these sizes; else returns false and leaves C alone. Arguments as library_block().
bool onednn_block(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k, float alpha,
                  const float* a, std::int64_t lda, const float* b, std::int64_t ldb, float beta, float* c,
                  std::int64_t ldc);

}  // namespace lockstep::cpu::gemm_detail
