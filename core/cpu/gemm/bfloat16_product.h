#pragma once

#include "lockstep/core/cpu/gemm/gemm.h"
#include "lockstep/core/dtype.h"

namespace lockstep::cpu {

/// out = activation(a * b + bias), summed in float32 and rounded once: a is m x k and b is k x n, as those of Gemm.
struct Bfloat16Product {
  std::int64_t m = 0, n = 0, k = 0;
  GemmOperand<BFloat16> a = {}, b = {};
  BFloat16* out = nullptr;
  std::int64_t out_stride = 0;
  const float* bias = nullptr;
  Activation activation = Activation::none;
};

/// Note [Products of bfloat16]
/// An instruction that multiplies pairs of bfloat16 and adds both products to a float (VDPBF16PS) does twice the work
/// of a fused multiply-add. It adds one product after the other, each sum rounded to nearest, and a product of two
/// bfloat16 is exact: so a chain of such pairs is the chain that gemm() computes of the same values in float32
/// (Note [Order of a product]), as long as nothing is smaller than the smallest normal float, which the instruction
/// takes for 0, or infinite. Packing finds the smallest and the largest exponent of each panel; tiles where that is not
/// certain are computed by fused multiply-adds. Whether the processor rounds so is tried before it is used.
///
/// With fewer rows than a tile has, nothing but the few is packed before: what is read of b goes straight into the
/// sums, or a panel at a time through a cache.
///
/// The product, on the threads of parallel_for or, inside one of its loops, on the calling thread, with the bits of
/// gemm() on the operands in float32, rounded. Only where goes_by_bfloat16_pairs().
void multiply_bfloat16(const Bfloat16Product& product);

/// Whether this processor, and what is asked of it, computes products of bfloat16 by pairs: not with other instruction
/// sets or a library's kernels.
bool has_bfloat16_pairs();
/// And whether a product of these sizes does: small ones are not worth packing.
bool goes_by_bfloat16_pairs(std::int64_t m, std::int64_t n, std::int64_t k);

}  // namespace lockstep::cpu
