// Targets are checked as Note [Targets on a device] says.

#include <cmath>

#include "lockstep/autograd/ops/nll_loss/nll_loss_kernels.h"
#include "lockstep/autograd/ops/support/loss_sums.cuh"
#include "lockstep/core/copy.h"
#include "lockstep/core/cuda/math_mode.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

using cuda::from_element;
using cuda::LossSums;
using cuda::to_element;

template <typename T>
struct Rows {
  ClassRows rows;
  std::int64_t count;
  std::int64_t ignore_index;
  const std::int64_t* target;
  const T* weight;  // null: 1

  __device__ bool counts(std::int64_t row) const { return target[row] != ignore_index; }
  __device__ bool in_range(std::int64_t row) const { return target[row] >= 0 && target[row] < rows.classes; }
  __device__ compute_t<T> factor(std::int64_t row) const {
    return weight ? from_element<compute_t<T>>(weight[target[row]]) : compute_t<T>(1);
  }
  __device__ std::int64_t offset(std::int64_t row, std::int64_t c) const {
    const std::int64_t sample = row / rows.inner;
    return (sample * rows.classes + c) * rows.inner + row - sample * rows.inner;
  }
};

template <typename T, typename C>
__global__ void forward_kernel(Rows<T> in, const T* x, T* values, LossSums* partials, cuda::LossResult<T, C> result) {
  LossSums sum{{0.0, 0.0}};
  for (std::int64_t row = cuda::global_thread(); row < in.count; row += cuda::all_threads()) {
    C value = 0;
    if (in.counts(row)) {
      const bool valid = in.in_range(row);
      const C factor = valid ? in.factor(row) : C(1);
      value = valid ? -factor * from_element<C>(x[in.offset(row, in.target[row])]) : C(NAN);
      sum.value[0] += static_cast<double>(value);
      sum.value[1] += static_cast<double>(factor);
    }
    if (values) values[row] = to_element<T>(value);
  }
  cuda::finish_block(sum, partials, result);
}

// The rest of `grad_input` is 0.
template <typename T>
__global__ void backward_kernel(Rows<T> in, std::int64_t step, const double* total_weight, const T* grad,
                                T* grad_input) {
  using C = compute_t<T>;
  const C scale = total_weight ? static_cast<C>(1.0 / *total_weight) : C(1);
  for (std::int64_t row = cuda::global_thread(); row < in.count; row += cuda::all_threads()) {
    if (!in.counts(row)) continue;
    if (in.in_range(row))
      grad_input[in.offset(row, in.target[row])] =
          to_element<T>(-in.factor(row) * scale * from_element<C>(grad[row * step]));
    else
      grad_input[in.offset(row, 0)] = to_element<T>(C(NAN));
  }
}

template <typename T>
Rows<T> rows_of(const Tensor& target, const Tensor& weight, const NllLossProblem& problem) {
  return {problem.rows, problem.rows.rows(), problem.ignore_index, target.data<std::int64_t>(),
          weight.defined() ? weight.data<T>() : nullptr};
}

}  // namespace

void nll_loss_cuda(const Tensor& log_probs, const Tensor& target, const Tensor& weight, const Tensor& loss,
                   const Tensor& total_weight, const NllLossProblem& problem) {
  cuda::require_not_portable("nll_loss");
  dispatch_floating(log_probs.dtype(), "nll_loss", [&]<typename T>() {
    using C = compute_t<T>;
    const cuda::Launch launch(log_probs);
    const bool each = problem.reduction == Reduction::none;
    const cuda::LossResult<T, C> result{each ? nullptr : loss.data<T>(), total_weight.data<double>(),
                                        problem.reduction == Reduction::mean ? 0.0 : 1.0};
    const unsigned blocks = cuda::loss_blocks(problem.rows.rows(), 4 * cuda::kThreads);
    cuda::sum_loss(launch, log_probs, blocks, result, [&](LossSums* partials) {
      launch(forward_kernel<T, C>, blocks, cuda::kThreads, rows_of<T>(target, weight, problem), log_probs.data<T>(),
             each ? loss.data<T>() : nullptr, partials, result);
    });
  });
}

void nll_loss_backward_cuda(const Tensor& grad, const Tensor& target, const Tensor& weight, const Tensor& total_weight,
                            const Tensor& grad_input, const NllLossProblem& problem) {
  fill_values(grad_input, 0);
  const std::int64_t rows = problem.rows.rows();
  if (rows == 0) return;
  dispatch_floating(grad_input.dtype(), "nll_loss", [&]<typename T>() {
    const cuda::Launch launch(grad_input);
    launch(backward_kernel<T>, cuda::blocks_for(rows), cuda::kThreads, rows_of<T>(target, weight, problem),
           problem.reduction == Reduction::none ? 1 : 0,
           problem.reduction == Reduction::mean ? total_weight.data<double>() : nullptr, grad.data<T>(),
           grad_input.data<T>());
  });
}

}  // namespace lockstep
