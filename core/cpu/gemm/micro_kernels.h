#pragma once

#include "lockstep/core/cpu/gemm/micro_kernel.h"
#include "lockstep/core/cpu/instruction_set.h"

namespace lockstep::cpu::gemm_detail {

/// Those of `set`, float or double.
template <typename T>
const MicroKernels<T>& micro_kernels(InstructionSet set);
template <>
const MicroKernels<float>& micro_kernels<float>(InstructionSet set);
template <>
const MicroKernels<double>& micro_kernels<double>(InstructionSet set);

}  // namespace lockstep::cpu::gemm_detail
