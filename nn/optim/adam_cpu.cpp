#include <cmath>

#include "core/dispatch.h"
#include "nn/optim/adam.h"
#include "nn/optim/run_loop.h"

namespace lockstep::optim::detail {
namespace {

template <typename T>
void update(const Optimizer::Run& run, std::int64_t begin, std::int64_t end, const AdamOptions& options,
            bool decoupled) {
  using C = compute_t<T>;
  T* __restrict p = static_cast<T*>(run.parameter);
  const T* __restrict g = static_cast<const T*>(run.gradient);
  C* __restrict m = static_cast<C*>(run.state[0]);
  C* __restrict v = static_cast<C*>(run.state[1]);
  const double t = static_cast<double>(run.step);
  const C step_size = static_cast<C>(options.lr / (1.0 - std::pow(options.beta1, t)));
  const C root = static_cast<C>(1.0 / std::sqrt(1.0 - std::pow(options.beta2, t)));
  const C keep = decoupled ? static_cast<C>(1.0 - options.lr * options.weight_decay) : C(1);
  const C decay = decoupled ? C(0) : static_cast<C>(options.weight_decay);
  const C beta1 = static_cast<C>(options.beta1), rest1 = static_cast<C>(1.0 - options.beta1);
  const C beta2 = static_cast<C>(options.beta2), rest2 = static_cast<C>(1.0 - options.beta2);
  const C eps = static_cast<C>(options.eps);
  for (std::int64_t i = begin; i < end; ++i) {
    const C value = static_cast<C>(p[i]);
    const C grad = static_cast<C>(g[i]) + decay * value;
    const C mean = beta1 * m[i] + rest1 * grad;
    const C square = beta2 * v[i] + rest2 * grad * grad;
    m[i] = mean;
    v[i] = square;
    p[i] = static_cast<T>(keep * value - step_size * (mean / (std::sqrt(square) * root + eps)));
  }
}

}  // namespace

void adam_cpu(DType dtype, const std::vector<Optimizer::Run>& runs, const AdamOptions& options, bool decoupled) {
  dispatch_floating(dtype, "Adam", [&]<typename T>() {
    for_each_piece(runs, [&](const Optimizer::Run& run, std::int64_t begin, std::int64_t end) {
      update<T>(run, begin, end, options, decoupled);
    });
  });
}

}  // namespace lockstep::optim::detail
