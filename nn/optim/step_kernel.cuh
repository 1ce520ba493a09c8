#pragma once

// The kernel of an optimizer's step: one pass over parameters, gradients and state. For .cu files only.

#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/launch.cuh"
#include "lockstep/core/dispatch.h"
#include "lockstep/nn/optim/gradients.h"
#include "lockstep/nn/optim/step_table.h"

namespace lockstep::optim {

/// `Update` is made from a run's scalars; update(value, gradient, state) gives a parameter's new value and changes its
/// kStates elements of state. What a graph that captured this launch updates is in the table, not in the arguments, and
/// so is what may forbid the update.
template <typename T, int kStates, typename Update>
__global__ void step_kernel(const StepTable* table) {
  using C = compute_t<T>;
  constexpr int kWidth = 16 / static_cast<int>(sizeof(C));
  const double* scaler = table->scaler;
  if (scaler && scaler[detail::kOverflowed] != 0.0) return;
  const int later = scaler ? static_cast<int>(scaler[detail::kSkipped] - table->known_skips) : 0;
  const auto* rows = reinterpret_cast<const StepTableRun*>(table + 1);
  for (std::int64_t chunk = blockIdx.x; chunk < table->chunks; chunk += gridDim.x) {
    std::int64_t low = 0, high = table->runs;  // the run is in [low, high)
    while (high - low > 1) {
      const std::int64_t middle = (low + high) / 2;
      (rows[middle].first_chunk <= chunk ? low : high) = middle;
    }
    const Optimizer::Run& run = rows[low].run;
    const std::int64_t begin = (chunk - rows[low].first_chunk) * kStepChunk;
    const std::int64_t end = begin + kStepChunk < run.numel ? begin + kStepChunk : run.numel;
    const Update update(later == 0 ? run.scalars : table->later + (low * (kMostAhead - 1) + later - 1) * kStepScalars);
    T* parameter = static_cast<T*>(run.parameter);
    const T* gradient = static_cast<const T*>(run.gradient);
    C* state[Optimizer::kMaxState] = {static_cast<C*>(run.state[0]), static_cast<C*>(run.state[1]),
                                      static_cast<C*>(run.state[2])};
    bool packed = reinterpret_cast<std::uintptr_t>(parameter) % sizeof(cuda::Pack<T, kWidth>) == 0 &&
                  reinterpret_cast<std::uintptr_t>(gradient) % sizeof(cuda::Pack<T, kWidth>) == 0;
#pragma unroll
    for (int s = 0; s < kStates; ++s) packed = packed && reinterpret_cast<std::uintptr_t>(state[s]) % 16 == 0;

    std::int64_t rest = begin;
    if (packed) {
      rest = begin + (end - begin) / kWidth * kWidth;
      for (std::int64_t i = begin + static_cast<std::int64_t>(threadIdx.x) * kWidth; i < rest;
           i += static_cast<std::int64_t>(blockDim.x) * kWidth) {
        auto p = *reinterpret_cast<const cuda::Pack<T, kWidth>*>(parameter + i);
        const auto g = *reinterpret_cast<const cuda::Pack<T, kWidth>*>(gradient + i);
        cuda::Pack<C, kWidth> own[kStates > 0 ? kStates : 1];
#pragma unroll
        for (int s = 0; s < kStates; ++s) own[s] = *reinterpret_cast<const cuda::Pack<C, kWidth>*>(state[s] + i);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          C element[Optimizer::kMaxState] = {};
#pragma unroll
          for (int s = 0; s < kStates; ++s) element[s] = own[s].value[j];
          p.value[j] = cuda::to_element<T>(
              update(cuda::from_element<C>(p.value[j]), cuda::from_element<C>(g.value[j]), element));
#pragma unroll
          for (int s = 0; s < kStates; ++s) own[s].value[j] = element[s];
        }
        *reinterpret_cast<cuda::Pack<T, kWidth>*>(parameter + i) = p;
#pragma unroll
        for (int s = 0; s < kStates; ++s) *reinterpret_cast<cuda::Pack<C, kWidth>*>(state[s] + i) = own[s];
      }
    }
    for (std::int64_t i = rest + threadIdx.x; i < end; i += blockDim.x) {
      C element[Optimizer::kMaxState] = {};
#pragma unroll
      for (int s = 0; s < kStates; ++s) element[s] = state[s][i];
      parameter[i] =
          cuda::to_element<T>(update(cuda::from_element<C>(parameter[i]), cuda::from_element<C>(gradient[i]), element));
#pragma unroll
      for (int s = 0; s < kStates; ++s) state[s][i] = element[s];
    }
  }
}

template <typename T, int kStates, typename Update>
void update_runs(const Optimizer::Plan& plan) {
  std::int64_t chunks = 0;
  for (const Optimizer::Run& run : plan.runs) chunks += step_chunks(run.numel);
  const cuda::Launch launch(plan.table);
  launch(step_kernel<T, kStates, Update>, cuda::blocks_for(chunks, 1), cuda::kThreads,
         static_cast<const StepTable*>(plan.table.raw_data()));
}

}  // namespace lockstep::optim
