// Forward, a thread, warp or block takes a row, by the number of classes; it reads the row twice, the second time from
// a cache. Backward reads logits and writes gradients once. Targets are checked as Note [Targets on a device] says.

#include <cmath>

#include "lockstep/autograd/ops/cross_entropy/cross_entropy_kernels.h"
#include "lockstep/autograd/ops/support/loss_sums.cuh"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/fixed_math.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::LossSums;
using cuda::Pack;
using cuda::to_element;

/// See Note [Smoothed targets].
template <typename T>
struct Rows {
  using C = compute_t<T>;
  std::int64_t rows, classes, ignore_index;
  const T* x;
  const std::int64_t* target;
  const T* weight;  // null: 1
  C* normalizers;
  C sharp, even;
  bool smooth;

  Rows(const Tensor& logits, const Tensor& target, const Tensor& weight, const Tensor& normalizers,
       const CrossEntropyProblem& problem)
      : rows(problem.rows.rows()),
        classes(problem.rows.classes),
        ignore_index(problem.ignore_index),
        x(logits.data<T>()),
        target(target.data<std::int64_t>()),
        weight(weight.defined() ? weight.data<T>() : nullptr),
        normalizers(normalizers.data<C>()),
        sharp(static_cast<C>(1.0 - problem.label_smoothing)),
        even(static_cast<C>(problem.label_smoothing / static_cast<double>(classes))),
        smooth(problem.label_smoothing > 0.0) {}

  __device__ bool in_range(std::int64_t row) const { return target[row] >= 0 && target[row] < classes; }
  __device__ C factor(std::int64_t c) const { return weight ? from_element<C>(weight[c]) : C(1); }
};

/// op over the threads that share a row.
template <int kGroup, typename C, typename Op>
__device__ C group_reduce(C value, Op op) {
  if constexpr (kGroup == 1)
    return value;
  else if constexpr (kGroup == cuda::kWarpSize)
    return cuda::warp_reduce(value, op);
  else
    return cuda::block_reduce(value, op);
}

template <int kGroup, typename T>
__global__ void forward_kernel(Rows<T> in, T* values, LossSums* partials, cuda::LossResult<T, compute_t<T>> result) {
  using C = compute_t<T>;
  const std::int64_t member = threadIdx.x % kGroup;
  LossSums sum{{0.0, 0.0}};
  for (std::int64_t row = cuda::global_thread() / kGroup; row < in.rows; row += cuda::all_threads() / kGroup) {
    const T* x = in.x + row * in.classes;
    C top = -static_cast<C>(INFINITY);
    for (std::int64_t c = member; c < in.classes; c += kGroup) top = cuda::Max<C>()(top, from_element<C>(x[c]));
    top = group_reduce<kGroup>(top, cuda::Max<C>());
    C exps = 0;
    for (std::int64_t c = member; c < in.classes; c += kGroup) exps += std::exp(from_element<C>(x[c]) - top);
    const C log_sum = std::log(group_reduce<kGroup>(exps, cuda::Add<C>()));
    const std::int64_t target = in.target[row];
    const bool counts = target != in.ignore_index;
    C spread = 0;
    if (in.smooth && counts) {
      for (std::int64_t c = member; c < in.classes; c += kGroup)
        spread += in.factor(c) * (log_sum - (from_element<C>(x[c]) - top));
      spread = group_reduce<kGroup>(spread, cuda::Add<C>());
    }
    if (member != 0) continue;
    in.normalizers[2 * row] = top;
    in.normalizers[2 * row + 1] = log_sum;
    C value = 0;
    if (counts) {
      const bool valid = in.in_range(row);
      const C factor = valid ? in.factor(target) : C(1);
      value = valid ? in.sharp * factor * (log_sum - (from_element<C>(x[target]) - top)) + in.even * spread : C(NAN);
      sum.value[0] += static_cast<double>(value);
      sum.value[1] += static_cast<double>(factor);
    }
    if (values) values[row] = to_element<T>(value);
  }
  cuda::finish_block(sum, partials, result);
}

// Below, the CPU's steps (cross_entropy_cpu.cpp), for Note [Portable arithmetic].

/// A thread has a row. losses[2 * row] and the element behind it: the row's loss and weight.
template <typename T>
__global__ void portable_forward_kernel(Rows<T> in, T* values, float* losses) {
  for (std::int64_t row = cuda::global_thread(); row < in.rows; row += cuda::all_threads()) {
    const T* const x = in.x + row * in.classes;
    float top = from_element<float>(x[0]);
    for (std::int64_t c = 1; c < in.classes; ++c) top = cuda::Max<float>()(top, from_element<float>(x[c]));
    const auto exponential = [&](std::int64_t c) { return math::fixed::exp(from_element<float>(x[c]) - top); };
    const float log_sum = math::fixed::log(cpu::lane_sum<float>(in.classes, exponential));
    in.normalizers[2 * row] = top;
    in.normalizers[2 * row + 1] = log_sum;
    const std::int64_t target = in.target[row];
    float value = 0.0f, factor = 0.0f;
    if (target != in.ignore_index) {
      const bool valid = in.in_range(row);
      factor = valid ? in.factor(target) : 1.0f;
      value = valid ? in.sharp * factor * (log_sum - (from_element<float>(x[target]) - top)) : NAN;
      if (in.smooth) {
        const auto term = [&](std::int64_t c) {
          const float each = log_sum - (from_element<float>(x[c]) - top);
          return in.weight ? in.factor(c) * each : each;
        };
        value += in.even * cpu::lane_sum<float>(in.classes, term);
      }
    }
    losses[2 * row] = value;
    losses[2 * row + 1] = factor;
    if (values) values[row] = to_element<T>(value);
  }
}

/// Adds them up in blocks of `per_block` rows, and then these; one block of threads.
template <typename T>
__global__ void portable_sums_kernel(const float* losses, std::int64_t rows, std::int64_t per_block, LossSums* partials,
                                     cuda::LossResult<T, float> result) {
  const std::int64_t blocks = (rows + per_block - 1) / per_block;
  for (std::int64_t block = threadIdx.x; block < blocks; block += blockDim.x) {
    const std::int64_t end = (block + 1) * per_block < rows ? (block + 1) * per_block : rows;
    LossSums sum{{0.0, 0.0}};
    for (std::int64_t row = block * per_block; row < end; ++row)
      for (int i = 0; i < 2; ++i) sum.value[i] += static_cast<double>(losses[2 * row + i]);
    partials[block] = sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  LossSums sum{{0.0, 0.0}};
  for (std::int64_t block = 0; block < blocks; ++block)
    for (int i = 0; i < 2; ++i) sum.value[i] += partials[block].value[i];
  result(sum);
}

template <typename T>
void portable_forward(const Tensor& like, const Rows<T>& rows, T* values,
                      const cuda::LossResult<T, compute_t<T>>& result) {
  if constexpr (std::is_same_v<T, float>) {
    const std::int64_t per_block = std::max<std::int64_t>(kCrossEntropyBlock / rows.classes, 1);
    const Tensor losses = empty({rows.rows, 2}, {.device = like.device()});
    const Tensor partials =
        empty({(rows.rows + per_block - 1) / per_block, 2}, {.dtype = kFloat64, .device = like.device()});
    const cuda::Launch launch(like);
    launch(portable_forward_kernel<T>, cuda::blocks_for(rows.rows), cuda::kThreads, rows, values, losses.data<float>());
    launch(portable_sums_kernel<T>, 1, cuda::kThreads, static_cast<const float*>(losses.data<float>()), rows.rows,
           per_block, static_cast<LossSums*>(partials.raw_data()), result);
  } else {
    cuda::require_not_portable("cross_entropy of another type than float32");
  }
}

/// exp(x); with the CPU's bits if `kPortable`.
template <bool kPortable, typename C>
__device__ C exponential(C x) {
  if constexpr (kPortable && std::is_same_v<C, float>)
    return math::fixed::exp(x);
  else
    return std::exp(x);
}

/// W classes of one row at a time. `total_weight` is null unless the loss is a mean; `step` is 1 if each row has a
/// gradient of its own, else 0.
template <int W, bool kPortable, typename T>
__global__ void backward_kernel(Rows<T> in, std::int64_t packs, std::int64_t step, const double* total_weight,
                                const T* grad, T* grad_input) {
  using C = compute_t<T>;
  const C scale = total_weight ? static_cast<C>(1.0 / *total_weight) : C(1);
  C even_total = 0;
  if (in.smooth) {
    C sum = static_cast<C>(in.classes);
    if (in.weight && kPortable) {
      sum = cpu::lane_sum<C>(in.classes, [&](std::int64_t c) { return in.factor(c); });
    } else if (in.weight) {
      sum = 0;
      for (std::int64_t c = threadIdx.x; c < in.classes; c += blockDim.x) sum += in.factor(c);
      sum = cuda::block_sum(sum);
    }
    even_total = in.even * sum;
  }
  for (std::int64_t p = cuda::global_thread(); p < packs; p += cuda::all_threads()) {
    const std::int64_t row = p * W / in.classes, first = p * W - row * in.classes, target = in.target[row];
    const bool valid = in.in_range(row);
    const C top = in.normalizers[2 * row], log_sum = in.normalizers[2 * row + 1];
    const C incoming = target == in.ignore_index ? C(0) : valid ? from_element<C>(grad[row * step]) * scale : C(NAN);
    const C sharp = valid ? in.sharp * in.factor(target) : C(0);
    const auto logits = reinterpret_cast<const Pack<T, W>*>(in.x)[p];
    Pack<T, W> result;
#pragma unroll
    for (int j = 0; j < W; ++j) {
      const std::int64_t c = first + j;
      C value = exponential<kPortable>((from_element<C>(logits.value[j]) - top) - log_sum) *
                (incoming * (sharp + even_total));
      if (c == target) value -= incoming * sharp;
      if (in.smooth) value -= incoming * in.even * in.factor(c);
      result.value[j] = to_element<T>(target == in.ignore_index ? C(0) : value);
    }
    reinterpret_cast<Pack<T, W>*>(grad_input)[p] = result;
  }
}

}  // namespace

void cross_entropy_cuda(const Tensor& logits, const Tensor& target, const Tensor& weight, const Tensor& loss,
                        const Tensor& normalizers, const Tensor& total_weight, const CrossEntropyProblem& problem) {
  dispatch_floating(logits.dtype(), "cross_entropy", [&]<typename T>() {
    using C = compute_t<T>;
    const cuda::Launch launch(logits);
    const Rows<T> rows(logits, target, weight, normalizers, problem);
    T* values = problem.reduction == Reduction::none ? loss.data<T>() : nullptr;
    const cuda::LossResult<T, C> result{values ? nullptr : loss.data<T>(), total_weight.data<double>(),
                                        problem.reduction == Reduction::mean ? 0.0 : 1.0};
    const auto run = [&](auto* kernel, std::int64_t rows_per_block) {
      const unsigned blocks = cuda::loss_blocks(rows.rows, rows_per_block);
      cuda::sum_loss(launch, logits, blocks, result, [&](LossSums* partials) {
        launch(kernel, blocks, cuda::kThreads, rows, values, partials, result);
      });
    };
    if (cuda::portable()) return portable_forward<T>(logits, rows, values, result);
    // A small batch is left to one block, which needs no second kernel for its sums.
    if (rows.classes <= 32)
      run(forward_kernel<1, T>, 2 * cuda::kThreads);
    else if (rows.classes <= 1024)
      run(forward_kernel<cuda::kWarpSize, T>, cuda::kThreads / cuda::kWarpSize);
    else
      run(forward_kernel<cuda::kThreads, T>, 1);
  });
}

void cross_entropy_backward_cuda(const Tensor& grad, const Tensor& logits, const Tensor& target, const Tensor& weight,
                                 const Tensor& normalizers, const Tensor& total_weight, const Tensor& grad_input,
                                 const CrossEntropyProblem& problem) {
  const std::int64_t count = logits.numel();
  if (count == 0) return;
  dispatch_floating(logits.dtype(), "cross_entropy", [&]<typename T>() {
    const cuda::Launch launch(logits);
    const Rows<T> rows(logits, target, weight, normalizers, problem);
    const auto run = [&](auto* kernel, int width) {
      launch(kernel, cuda::blocks_for(count / width, 2 * cuda::kThreads), cuda::kThreads, rows, count / width,
             problem.reduction == Reduction::none ? 1 : 0,
             problem.reduction == Reduction::mean ? total_weight.data<double>() : nullptr, grad.data<T>(),
             grad_input.data<T>());
    };
    constexpr int W = 16 / sizeof(T);
    const bool packed =
        rows.classes % W == 0 && cuda::aligned(logits.raw_data(), 16) && cuda::aligned(grad_input.raw_data(), 16);
    if (cuda::portable())
      run(backward_kernel<1, true, T>, 1);
    else if (packed)
      run(backward_kernel<W, false, T>, W);
    else
      run(backward_kernel<1, false, T>, 1);
  });
}

}  // namespace lockstep
