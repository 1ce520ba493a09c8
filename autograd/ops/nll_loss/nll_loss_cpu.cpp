#include "lockstep/autograd/ops/nll_loss/nll_loss_kernels.h"
#include "lockstep/autograd/ops/support/block_sums.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/dispatch.h"

namespace lockstep {

namespace {

constexpr std::int64_t kRowBlock = 4096;

template <typename T>
void forward(const Tensor& log_probs, const Tensor& target, const Tensor& weight, const Tensor& loss,
             const Tensor& total_weight, const NllLossProblem& problem) {
  using C = compute_t<T>;
  const ClassRows rows = problem.rows;
  const T* x = log_probs.data<T>();
  const auto* t = target.data<std::int64_t>();
  const T* w = weight.defined() ? weight.data<T>() : nullptr;
  T* values = problem.reduction == Reduction::none ? loss.data<T>() : nullptr;
  const auto sums = block_sums<2>(rows.rows(), kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    std::array<double, 2> sum{};
    for (std::int64_t row = begin; row < end; ++row) {
      C value = 0;
      if (t[row] != problem.ignore_index) {
        if (t[row] < 0 || t[row] >= rows.classes) throw_bad_target("nll_loss", row, t[row], rows, problem.ignore_index);
        const C factor = w ? static_cast<C>(w[t[row]]) : C(1);
        const std::int64_t sample = row / rows.inner, position = row % rows.inner;
        value = -factor * static_cast<C>(x[(sample * rows.classes + t[row]) * rows.inner + position]);
        sum[0] += value;
        sum[1] += factor;
      }
      if (values) values[row] = static_cast<T>(value);
    }
    return sum;
  });
  *total_weight.data<double>() = sums[1];
  if (problem.reduction != Reduction::none)
    *loss.data<T>() =
        static_cast<T>(static_cast<C>(problem.reduction == Reduction::mean ? sums[0] / sums[1] : sums[0]));
}

template <typename T>
void backward(const Tensor& grad, const Tensor& target, const Tensor& weight, const Tensor& total_weight,
              const Tensor& grad_input, const NllLossProblem& problem) {
  using C = compute_t<T>;
  const ClassRows rows = problem.rows;
  const T* g = grad.data<T>();
  const auto* t = target.data<std::int64_t>();
  const T* w = weight.defined() ? weight.data<T>() : nullptr;
  T* d = grad_input.data<T>();
  const bool each = problem.reduction == Reduction::none;
  const C scale = problem.reduction == Reduction::mean ? static_cast<C>(1.0 / *total_weight.data<double>()) : C(1);
  fill_values(grad_input, 0);
  parallel_for(rows.rows(), kRowBlock, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      if (t[row] == problem.ignore_index) continue;
      const C factor = w ? static_cast<C>(w[t[row]]) : C(1);
      const std::int64_t sample = row / rows.inner, position = row % rows.inner;
      d[(sample * rows.classes + t[row]) * rows.inner + position] =
          static_cast<T>(-factor * scale * static_cast<C>(g[each ? row : 0]));
    }
  });
}

}  // namespace

void nll_loss_cpu(const Tensor& log_probs, const Tensor& target, const Tensor& weight, const Tensor& loss,
                  const Tensor& total_weight, const NllLossProblem& problem) {
  dispatch_floating(log_probs.dtype(), "nll_loss",
                    [&]<typename T>() { forward<T>(log_probs, target, weight, loss, total_weight, problem); });
}

void nll_loss_backward_cpu(const Tensor& grad, const Tensor& target, const Tensor& weight, const Tensor& total_weight,
                           const Tensor& grad_input, const NllLossProblem& problem) {
  dispatch_floating(grad_input.dtype(), "nll_loss",
                    [&]<typename T>() { backward<T>(grad, target, weight, total_weight, grad_input, problem); });
}

}  // namespace lockstep
