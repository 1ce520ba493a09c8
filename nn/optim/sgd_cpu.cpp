#include "core/dispatch.h"
#include "nn/optim/run_loop.h"
#include "nn/optim/sgd.h"

namespace lockstep::optim::detail {
namespace {

template <typename T>
void plain(const Optimizer::Run& run, std::int64_t begin, std::int64_t end, const SGDOptions& options) {
  using C = compute_t<T>;
  T* __restrict p = static_cast<T*>(run.parameter);
  const T* __restrict g = static_cast<const T*>(run.gradient);
  const C lr = static_cast<C>(options.lr), decay = static_cast<C>(options.weight_decay);
  for (std::int64_t i = begin; i < end; ++i) {
    const C value = static_cast<C>(p[i]);
    p[i] = static_cast<T>(value - lr * (static_cast<C>(g[i]) + decay * value));
  }
}

template <typename T, bool kNesterov>
void with_momentum(const Optimizer::Run& run, std::int64_t begin, std::int64_t end, const SGDOptions& options) {
  using C = compute_t<T>;
  T* __restrict p = static_cast<T*>(run.parameter);
  const T* __restrict g = static_cast<const T*>(run.gradient);
  C* __restrict b = static_cast<C*>(run.state[0]);
  const C lr = static_cast<C>(options.lr), decay = static_cast<C>(options.weight_decay);
  const C mu = static_cast<C>(options.momentum);
  // The buffer is zero at first, so that a share of 1 makes the first value g itself, as PyTorch's.
  const C share = run.step == 1 ? C(1) : static_cast<C>(1.0 - options.dampening);
  for (std::int64_t i = begin; i < end; ++i) {
    const C value = static_cast<C>(p[i]);
    const C grad = static_cast<C>(g[i]) + decay * value;
    const C buffer = mu * b[i] + share * grad;
    b[i] = buffer;
    p[i] = static_cast<T>(value - lr * (kNesterov ? grad + mu * buffer : buffer));
  }
}

}  // namespace

void sgd_cpu(DType dtype, const std::vector<Optimizer::Run>& runs, const SGDOptions& options) {
  dispatch_floating(dtype, "SGD", [&]<typename T>() {
    for_each_piece(runs, [&](const Optimizer::Run& run, std::int64_t begin, std::int64_t end) {
      if (!run.state[0])
        plain<T>(run, begin, end, options);
      else if (options.nesterov)
        with_momentum<T, true>(run, begin, end, options);
      else
        with_momentum<T, false>(run, begin, end, options);
    });
  });
}

}  // namespace lockstep::optim::detail
