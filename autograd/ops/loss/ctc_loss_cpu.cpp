#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "lockstep/autograd/ops/loss/ctc_loss_kernels.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::detail {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  if (a < b) std::swap(a, b);
  return b == kNever ? a : a + math::portable_log1p(math::portable_exp(b - a));
}

/// One sample, in double. `row(t)` gives the log-probabilities of step t, `gradient_row(t)` where its gradient goes.
template <typename Row, typename GradientRow>
double one_sample(const CtcSample& sample, std::int64_t classes, Row&& row, GradientRow&& gradient_row, bool gradient) {
  const std::vector<std::int64_t>& labels = sample.extended;
  const auto states = static_cast<std::int64_t>(labels.size());
  const std::int64_t steps = sample.steps;
  if (steps == 0) return states == 1 ? 0.0 : -kNever;
  const auto label = [&](std::int64_t s) { return labels[static_cast<std::size_t>(s)]; };
  // A label may follow the one before without a blank between them if they differ.
  const auto skips = [&](std::int64_t s) { return s >= 2 && label(s) != label(s - 2) && s % 2 == 1; };
  std::vector<double> alpha(static_cast<std::size_t>(steps * states), kNever);
  const auto at = [&](std::int64_t t, std::int64_t s) -> double& {
    return alpha[static_cast<std::size_t>(t * states + s)];
  };
  for (std::int64_t s = 0; s < std::min<std::int64_t>(states, 2); ++s) at(0, s) = static_cast<double>(row(0)[label(s)]);
  for (std::int64_t t = 1; t < steps; ++t)
    for (std::int64_t s = 0; s < states; ++s) {
      double sum = at(t - 1, s);
      if (s > 0) sum = log_add(sum, at(t - 1, s - 1));
      if (skips(s)) sum = log_add(sum, at(t - 1, s - 2));
      at(t, s) = sum + static_cast<double>(row(t)[label(s)]);
    }
  double total = at(steps - 1, states - 1);
  if (states > 1) total = log_add(total, at(steps - 1, states - 2));
  if (!gradient) return -total;

  std::vector<double> beta(static_cast<std::size_t>(states), kNever), next(beta),
      share(static_cast<std::size_t>(classes));
  for (std::int64_t t = steps - 1; t >= 0; --t) {
    std::fill(share.begin(), share.end(), kNever);
    for (std::int64_t s = 0; s < states; ++s) {
      const auto of = [&](std::int64_t state) { return next[static_cast<std::size_t>(state)]; };
      double sum = t == steps - 1 ? (s >= states - 2 ? 0.0 : kNever) : of(s);
      if (t < steps - 1 && s + 1 < states) sum = log_add(sum, of(s + 1));
      if (t < steps - 1 && s + 2 < states && skips(s + 2)) sum = log_add(sum, of(s + 2));
      // `beta` counts what comes after step t, `next` that with the step itself.
      double& of_class = share[static_cast<std::size_t>(label(s))];
      of_class = log_add(of_class, at(t, s) + sum);
      beta[static_cast<std::size_t>(s)] = sum + static_cast<double>(row(t)[label(s)]);
    }
    std::swap(beta, next);
    auto* to = gradient_row(t);
    for (std::int64_t c = 0; c < classes; ++c) {
      const double of_class = share[static_cast<std::size_t>(c)];
      const double part = of_class == kNever ? 0.0 : math::portable_exp(of_class - total);
      to[c] = static_cast<std::remove_reference_t<decltype(to[c])>>(math::portable_exp(static_cast<double>(row(t)[c])) -
                                                                    part);
    }
  }
  return -total;
}

template <typename T>
void all_samples(const Tensor& log_probs, const std::vector<CtcSample>& samples, const Tensor& losses,
                 const Tensor& gradient) {
  const std::int64_t n = log_probs.size(1), classes = log_probs.size(2);
  const T* values = log_probs.data<T>();
  T* to = gradient.defined() ? gradient.data<T>() : nullptr;
  lockstep::parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      losses.data<T>()[i] = static_cast<T>(one_sample(
          samples[static_cast<std::size_t>(i)], classes, [=](std::int64_t t) { return values + (t * n + i) * classes; },
          [=](std::int64_t t) { return to + (t * n + i) * classes; }, to != nullptr));
  });
}

}  // namespace

void ctc_loss_cpu(const Tensor& log_probs, const std::vector<CtcSample>& samples, const Tensor& losses,
                  const Tensor& gradient) {
  if (log_probs.dtype() == kFloat64)
    all_samples<double>(log_probs, samples, losses, gradient);
  else
    all_samples<float>(log_probs, samples, losses, gradient);
}

}  // namespace lockstep::detail
