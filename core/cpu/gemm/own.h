#pragma once

#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/cpu/instruction_set.h"

namespace lockstep::cpu::gemm_detail {

/// Note [Order of a product]
/// An element of the result is the sum over k in blocks of inner_block(k). Within a block it is one chain of fused
/// multiply-adds, from the first k to the last, starting with 0; the blocks are added to the result in order:
///   sum(block) = fma(a[p1], b[p1], fma(a[p0], b[p0], 0)) ...
///   out = beta * out + alpha * sum(0); out = out + alpha * sum(1); ...; out = out + bias; ...
/// Vectors run along the columns of the result, never along k, so neither their length nor how the result is cut into
/// tiles enters. Nothing else may: no kernel for short or for thin products adds in another order.
inline constexpr std::int64_t kInner = 512;
inline std::int64_t inner_block(std::int64_t k) {  // of 0 < k: nearly equal blocks of kInner steps at most
  const std::int64_t blocks = (k + kInner - 1) / kInner, length = (k + blocks - 1) / blocks;
  return (length + 7) / 8 * 8;
}

/// gemm() by our own kernels for `set`, which this processor must have. Arguments are checked by the caller.
void multiply_own(const Gemm<float>& problem, InstructionSet set);
void multiply_own(const Gemm<double>& problem, InstructionSet set);

/// kernels() for a value of LOCKSTEP_KERNELS (null: not set). Throws Error.
Kernels choose_kernels(const char* value);

/// out = beta * out + bias + row_bias, then the activation, for the rows [begin, end) of one matrix `out`: the whole
/// result where there is nothing to sum, or what follows a library's product (beta == 1).
void finish_rows(const Gemm<float>& problem, float* out, std::int64_t begin, std::int64_t end, float beta);
void finish_rows(const Gemm<double>& problem, double* out, std::int64_t begin, std::int64_t end, double beta);

/// x * Phi(x) for `count` values in place.
void gelu(float* values, std::int64_t count);
void gelu(double* values, std::int64_t count);

}  // namespace lockstep::cpu::gemm_detail
