#include "lockstep/core/cpu/gemm/micro_kernels.h"

namespace lockstep::cpu::gemm_detail {

template <>
const MicroKernels<float>& micro_kernels<float>([[maybe_unused]] InstructionSet set) {
#if defined(__aarch64__)
  return kNeonFloat;
#else
  return set == InstructionSet::avx512 ? kAvx512Float : kAvx2Float;
#endif
}
template <>
const MicroKernels<double>& micro_kernels<double>([[maybe_unused]] InstructionSet set) {
#if defined(__aarch64__)
  return kNeonDouble;
#else
  return set == InstructionSet::avx512 ? kAvx512Double : kAvx2Double;
#endif
}

}  // namespace lockstep::cpu::gemm_detail
