#pragma once

#include <cstdint>

namespace lockstep::cpu {

enum class Activation : unsigned char {
  none,
  relu,  ///< max(0, x); NaN stays
  gelu,  ///< x * Phi(x) with the error function, as op gelu computes it
};

/// A matrix in memory, or a batch of them: row-major as stored, `stride` elements from row to row and `batch_stride`
/// (0: the same one for all) from matrix to matrix. `transposed`: its transpose is meant.
template <typename T>
struct GemmOperand {
  const T* data = nullptr;
  std::int64_t stride = 0;
  bool transposed = false;
  std::int64_t batch_stride = 0;
};

/// out = activation(alpha * a * b + beta * out + bias + row_bias): a is m x k, b is k x n, out is m x n, row-major and
/// never transposed. bias has an element for each column, row_bias for each row; either may be null. beta == 0 ignores
/// what out held, NaN included; alpha == 0 or k == 0 ignores a and b.
template <typename T>
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  GemmOperand<T> a = {}, b = {};
  T* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t batch = 1;
  std::int64_t out_batch_stride = 0;
  T alpha = 1, beta = 0;
  const T* bias = nullptr;
  const T* row_bias = nullptr;
  Activation activation = Activation::none;
};

/// Computes the product, on the threads of parallel_for or, inside one of its loops, on the calling thread. With our
/// own kernels (Note [Order of a product] in own.h) the bits of an element of `out` depend on its row of a, its column
/// of b and k alone: not on the instruction set, the number of threads or the other sizes. With the libraries' they
/// depend on library, processor and shape, but still not on the number of threads. Throws Error if a size is negative,
/// if a stride is shorter than a row, or if `out` overlaps a or b.
void gemm(const Gemm<float>& problem);
void gemm(const Gemm<double>& problem);

/// Whose kernels compute products and convolutions.
enum class Kernels : unsigned char { own, libraries };
/// The value of the environment variable LOCKSTEP_KERNELS, "own" or "libraries", read once; own if it is not set.
/// Throws Error if it is anything else.
Kernels kernels();

/// "own, avx512", "OpenBLAS ...", "Eigen 3.4.0": for reports. Opens the BLAS if it is meant and not open (Note [BLAS at
/// first use]), and throws Error if it cannot be opened.
const char* gemm_library(Kernels whose = kernels());

}  // namespace lockstep::cpu
