#pragma once

#include <cstdint>

#include "lockstep/core/dtype.h"

namespace lockstep::cuda {

/// A matrix in device memory, or a batch of them: row-major as stored, `stride` elements from row to row and
/// `batch_stride` (0: the same one for all) from matrix to matrix. `transposed`: its transpose is meant.
struct GemmOperand {
  const void* data = nullptr;
  bool transposed = false;
  std::int64_t stride = 0;
  std::int64_t batch_stride = 0;
};

/// out = alpha * a * b + beta * out, then + bias for each row, then max(0, out) if `relu`; a is m x k, b is k x n, out
/// is m x n and never transposed. Everything is of `dtype`: float32, float64, float16 or bfloat16, the last two with
/// sums in float32. beta == 0 ignores what out held, NaN included.
struct Gemm {
  DType dtype = kFloat32;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t batch = 1;
  GemmOperand a = {}, b = {};
  void* out = nullptr;
  std::int64_t out_stride = 0;
  std::int64_t out_batch_stride = 0;
  double alpha = 1.0, beta = 0.0;
  const void* bias = nullptr;  ///< n elements, or null
  bool relu = false;           ///< a NaN may become 0
};

/// Where a, b and out of a Gemm must lie: at multiples of this. How a product is computed then depends on its sizes and
/// strides alone, and equal products give equal bits wherever their operands are.
inline constexpr std::int64_t kGemmAlignment = 16;

/// Queues the product on the device's current stream. All sizes are at least 1. The sums are in an order that depends
/// on the problem alone, unless set_deterministic(false); float32 is multiplied as TF32 only after set_allow_tf32(true)
/// (core/cuda/math_mode.h). Throws Error if cuBLASLt cannot be opened or has no algorithm.
void gemm(const Gemm& problem, int device);

/// Throws Error, saying why, if cuBLASLt cannot be opened or is too old for this build.
void require_gemm();

namespace detail {
/// The end of a Gemm in a pass of its own, for problems to which the library has no algorithm that does both.
void add_bias_relu(const Gemm& problem, int device);
/// gemm() while portable() holds: see Note [Portable arithmetic].
void gemm_portable(const Gemm& problem, int device);
}  // namespace detail

}  // namespace lockstep::cuda
