#include "lockstep/autograd/ops/loss/pointwise_loss_functors.h"
#include "lockstep/autograd/ops/loss/pointwise_loss_kernels.h"
#include "lockstep/autograd/ops/support/block_sums.h"
#include "lockstep/autograd/ops/support/elementwise_loss.h"
#include "lockstep/core/cpu/lane_sum.h"
#include "lockstep/core/cpu/wide_functions.h"
#include "lockstep/core/dispatch.h"
#include "lockstep/core/elementwise.h"

namespace lockstep {

void pointwise_loss_cpu(PointwiseLoss kind, double parameter, const Tensor& input, const Tensor& target,
                        const Tensor& loss, Reduction reduction) {
  dispatch_floating(input.dtype(), "loss", [&]<typename T>() {
    using C = compute_t<T>;
    const T* x = input.data<T>();
    const T* y = target.data<T>();
    T* out = loss.data<T>();
    pointwise::visit<C>(kind, parameter, [&](auto functor) {
      const auto f = functor;
      const auto value = [=](std::int64_t i) { return f.value(static_cast<C>(x[i]), static_cast<C>(y[i])); };
      if (reduction == Reduction::none) {
        parallel_for(input.numel(), cpu::kElementBlock, [&](std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) out[i] = static_cast<T>(value(i));
        });
        return;
      }
      const auto sum = block_sums<1>(input.numel(), cpu::kElementBlock, [&](std::int64_t begin, std::int64_t end) {
        return std::array<double, 1>{cpu::long_sum<C>(end - begin, [&](std::int64_t i) { return value(begin + i); })};
      });
      const double count = reduction == Reduction::mean ? static_cast<double>(input.numel()) : 1.0;
      *out = static_cast<T>(static_cast<C>(sum[0] / count));
    });
  });
}

void pointwise_loss_backward_cpu(PointwiseLoss kind, double parameter, const Tensor& grad, const Tensor& input,
                                 const Tensor& target, const Tensor& grad_input, const Tensor& grad_target,
                                 Reduction reduction) {
  dispatch_floating(input.dtype(), "loss backward", [&]<typename T>() {
    using C = compute_t<T>;
    const T* g = grad.data<T>();
    const T* x = input.data<T>();
    const T* y = target.data<T>();
    T* dx = grad_input.defined() ? grad_input.data<T>() : nullptr;
    T* dy = grad_target.defined() ? grad_target.data<T>() : nullptr;
    const std::int64_t step = reduction == Reduction::none ? 1 : 0;
    const C scale = static_cast<C>(reduction_scale(input, reduction));
    pointwise::visit<C>(kind, parameter, [&](auto functor) {
      const auto f = functor;
      parallel_for(input.numel(), cpu::kElementBlock, [&](std::int64_t begin, std::int64_t end) {
        // Written so that the loops vectorise: values choose between slopes, and branches on them are guesses.
        const auto write = [=](T* out, auto slope) {
          cpu::by_widest_vectors([=] {
            if (step == 0) {
              const C factor = scale * static_cast<C>(g[0]);
              LOCKSTEP_VECTORIZE
              for (std::int64_t i = begin; i < end; ++i)
                out[i] = static_cast<T>(factor * slope(static_cast<C>(x[i]), static_cast<C>(y[i])));
              return;
            }
            LOCKSTEP_VECTORIZE
            for (std::int64_t i = begin; i < end; ++i)
              out[i] = static_cast<T>(scale * static_cast<C>(g[i]) * slope(static_cast<C>(x[i]), static_cast<C>(y[i])));
          });
        };
        if (dx) write(dx, [f](C a, C b) { return f.by_input(a, b); });
        if (dy) write(dy, [f](C a, C b) { return f.by_target(a, b); });
      });
    });
  });
}

}  // namespace lockstep
