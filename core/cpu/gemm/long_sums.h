#pragma once

#include "lockstep/core/cpu/gemm/gemm.h"

namespace lockstep::cpu::gemm_detail {

/// Whether the result has few elements, whose sums are many blocks long, of operands that lie along k. Then eight
/// blocks of an element are computed side by side, where there would be few chains at a time else.
bool has_long_sums(const Gemm<float>& problem);
inline bool has_long_sums(const Gemm<double>&) {
  return false;
}

/// Matrix `index` of the batch, in the order of Note [Order of a product]. has_long_sums() holds.
void multiply_long_sums(const Gemm<float>& problem, std::int64_t index);
inline void multiply_long_sums(const Gemm<double>&, std::int64_t) {}

}  // namespace lockstep::cpu::gemm_detail
