#pragma once

// Sums of losses on CUDA devices, in an order that is a function of the shape alone. For .cu files only.

#include <cmath>

#include "lockstep/autograd/ops/support/arguments.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/cuda/reduce.cuh"
#include "lockstep/core/factories.h"

namespace lockstep::cuda {

/// Sums over a whole tensor: of the losses, and of the weights of what counts.
using LossSums = Sums<double, 2>;

/// Blocks for `count` values that a block takes `per_block` of: few, so that one more can add up their sums.
inline unsigned loss_blocks(std::int64_t count, std::int64_t per_block) {
  constexpr std::int64_t kMost = 1024;
  return static_cast<unsigned>(std::clamp<std::int64_t>((count + per_block - 1) / per_block, 1, kMost));
}

/// What becomes of the sums.
template <typename T, typename C>
struct LossResult {
  T* loss;               ///< null: kept by element
  double* total_weight;  ///< where the second sum goes; null: nowhere
  double divisor;        ///< of the loss; 0: the second sum

  __device__ void operator()(const LossSums& sums) const {
    if (total_weight) *total_weight = sums.value[1];
    if (loss) *loss = to_element<T>(static_cast<C>(sums.value[0] / (divisor != 0.0 ? divisor : sums.value[1])));
  }
};

/// The end of a kernel whose threads have `sum` each: the only block passes the sums of all on, each of several leaves
/// its own in `partials`.
template <typename T, typename C>
__device__ void finish_block(LossSums sum, LossSums* partials, const LossResult<T, C>& result) {
  sum = block_sum(sum);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1)
    result(sum);
  else
    partials[blockIdx.x] = sum;
}

template <typename T, typename C>
__global__ void finish_loss_kernel(const LossSums* partials, int count, LossResult<T, C> result) {
  LossSums sum{{0.0, 0.0}};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) sum = sum + partials[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) result(sum);
}

/// start(partials) launches a kernel of `blocks` blocks that ends with finish_block(); this does the rest.
template <typename T, typename C, typename Start>
void sum_loss(const Launch& launch, const Tensor& like, unsigned blocks, const LossResult<T, C>& result,
              Start&& start) {
  if (blocks == 1) return start(static_cast<LossSums*>(nullptr));
  const Tensor memory = empty({static_cast<std::int64_t>(blocks), 2}, {.dtype = kFloat64, .device = like.device()});
  auto* partials = static_cast<LossSums*>(memory.raw_data());
  start(partials);
  launch(finish_loss_kernel<T, C>, 1, kThreads, partials, static_cast<int>(blocks), result);
}

/// values[i] = f(i), or, where `values` is null, their sum. Threads add up in C, blocks in float64.
template <typename T, typename C, typename F>
__global__ void element_loss_kernel(std::int64_t count, F f, T* values, LossSums* partials, LossResult<T, C> result) {
  C sum = 0;
  for (std::int64_t i = global_thread(); i < count; i += all_threads()) {
    const C value = f(i);
    if (values)
      values[i] = to_element<T>(value);
    else
      sum += value;
  }
  if (!values) finish_block({{static_cast<double>(sum), 0.0}}, partials, result);
}

/// The loss whose value for element i of `input` is f(i), a C.
template <typename T, typename C, typename F>
void element_loss(const Tensor& input, const Tensor& loss, Reduction reduction, const F& f) {
  const std::int64_t count = input.numel();
  const Launch launch(input);
  if (reduction == Reduction::none) {
    if (count == 0) return;
    launch(element_loss_kernel<T, C, F>, blocks_for(count), kThreads, count, f, loss.data<T>(), nullptr,
           LossResult<T, C>{});
    return;
  }
  if (reduction == Reduction::mean && count == 0) return fill_values(loss, std::nan(""));
  const LossResult<T, C> result{loss.data<T>(), nullptr,
                                reduction == Reduction::mean ? static_cast<double>(count) : 1.0};
  const unsigned blocks = loss_blocks(count, 8 * kThreads);
  sum_loss(launch, input, blocks, result, [&](LossSums* partials) {
    launch(element_loss_kernel<T, C, F>, blocks, kThreads, count, f, static_cast<T*>(nullptr), partials, result);
  });
}

}  // namespace lockstep::cuda
