#pragma once

// What the reductions' kernels share. For .cu files only.

#include "lockstep/autograd/ops/reduce/reduce_plan.h"
#include "lockstep/core/cuda/elementwise.cuh"
#include "lockstep/core/cuda/reduce.cuh"

namespace lockstep::reduction {

/// ReducePlan as a kernel's argument: where the terms of each output lie.
struct Terms {
  std::int64_t outputs, count;
  cuda::Strides<1> kept, reduced;

  explicit Terms(const ReducePlan& plan)
      : outputs(plan.outputs),
        count(plan.count),
        kept({plan.kept, {plan.kept_strides}, plan.outputs}),
        reduced({plan.reduced, {plan.reduced_strides}, plan.count}) {}

  __device__ std::int64_t base(std::int64_t output) const { return offset(kept, output); }
  __device__ std::int64_t term(std::int64_t index) const { return offset(reduced, index); }

 private:
  __device__ static std::int64_t offset(const cuda::Strides<1>& walk, std::int64_t index) {
    if (walk.dims == 1) return index * walk.strides[0][0];
    std::int64_t result[1];
    walk.offsets(index, result);
    return result[0];
  }
};

/// True if threads that are neighbours should take neighbouring terms, false if neighbouring outputs.
inline bool terms_are_near(const ReducePlan& plan) {
  if (plan.count < 16 && plan.outputs >= cuda::kThreads) return false;
  return plan.outputs == 1 || plan.reduced_strides.back() <= plan.kept_strides.back();
}

}  // namespace lockstep::reduction
