#pragma once

// The libraries that bench/gemm compares with. Each in a file of its own, or one that says it is not there.

#include <cstdint>
#include <string>

namespace gemm_peers {

/// c = op(a) * op(b), row-major and dense: op(a) is m x k, op(b) is k x n.
struct Product {
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
  const float *a, *b;
  float* c;
  std::int64_t lda() const { return transpose_a ? m : k; }
  std::int64_t ldb() const { return transpose_b ? k : n; }
};

/// How many threads the library may use in one call.
void blas_threads(int threads);
void onednn_threads(int threads);
/// False: not part of this build.
bool blas(const Product& product);
bool onednn(const Product& product);
/// "OpenBLAS 0.3.21 ..."; empty: not part of this build.
std::string blas_name();
std::string onednn_name();

}  // namespace gemm_peers
