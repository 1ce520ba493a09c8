#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/autograd/ops/loss/ctc_loss_kernels.h"
#include "lockstep/core/double_math.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::detail {
namespace {

constexpr int kMantissaBits = 52, kBias = 1023;

double power_of_two(std::int64_t exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(exponent + kBias) << kMantissaBits);
}

/// value * 2^exponent: a probability that may be far below the smallest double, without logarithms. `value` is 0, in
/// which case the exponent is below any other, or at least 1.
struct Scaled {
  double value = 0.0;
  std::int64_t exponent = std::numeric_limits<std::int64_t>::min() / 4;

  bool is_zero() const { return value == 0.0; }
};

/// For a positive normal `value`.
Scaled scaled(double value, std::int64_t exponent) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto own = static_cast<std::int64_t>(bits >> kMantissaBits) - kBias;
  return {std::bit_cast<double>(bits - (static_cast<std::uint64_t>(own) << kMantissaBits)), exponent + own};
}

/// e to the power of x; 0 for -infinity, and for what is below -1e12.
Scaled exp_of(double x) {
  if (x < -1e12) return {};
  const double twos = x > -700.0 && x < 700.0 ? 0.0 : std::floor(x * 1.4426950408889634);
  return scaled(math::portable_exp(x - twos * 0.69314718055994531), static_cast<std::int64_t>(twos));
}

Scaled operator+(Scaled a, Scaled b) {
  if (a.exponent < b.exponent) std::swap(a, b);
  const std::int64_t apart = a.exponent - b.exponent;
  if (apart < 64) a.value += b.value * power_of_two(-apart);
  return a;
}

Scaled operator*(const Scaled& a, const Scaled& b) {
  if (a.is_zero() || b.is_zero()) return {};
  return scaled(a.value * b.value, a.exponent + b.exponent);
}

/// a * b / c, of which it is known that it is at most about 1; c is not zero.
double share_of(const Scaled& a, const Scaled& b, const Scaled& c) {
  if (a.is_zero() || b.is_zero()) return 0.0;
  const std::int64_t exponent = a.exponent + b.exponent - c.exponent;
  return exponent < -1000 ? 0.0 : a.value * b.value / c.value * power_of_two(std::min<std::int64_t>(exponent, 1000));
}

/// One sample, in double. `row(t)` gives the log-probabilities of step t; `gradient_row(t)`, where there is a gradient,
/// has their exponentials, of which the alignments' share is taken away.
template <typename Row, typename GradientRow>
double one_sample(const CtcSample& sample, std::int64_t classes, Row&& row, GradientRow&& gradient_row, bool gradient) {
  const std::vector<std::int64_t>& labels = sample.extended;
  const auto states = static_cast<std::int64_t>(labels.size());
  const std::int64_t steps = sample.steps;
  if (steps == 0) return states == 1 ? 0.0 : std::numeric_limits<double>::infinity();
  const auto label = [&](std::int64_t s) { return labels[static_cast<std::size_t>(s)]; };
  // A label may follow the one before without a blank between them if they differ.
  std::vector<char> skips(static_cast<std::size_t>(states + 2));
  for (std::int64_t s = 3; s < states; s += 2) skips[static_cast<std::size_t>(s)] = label(s) != label(s - 2);
  // Of step t: the blank, then the labels in order.
  const std::int64_t emitted = states / 2 + 1;
  std::vector<Scaled> emissions(static_cast<std::size_t>(steps * emitted)),
      alpha(static_cast<std::size_t>(steps * states));
  for (std::int64_t t = 0; t < steps; ++t)
    for (std::int64_t k = 0; k < emitted; ++k) {
      const auto x = static_cast<double>(row(t)[label(k == 0 ? 0 : 2 * k - 1)]);
      if (!(x <= 1e12)) return std::numeric_limits<double>::quiet_NaN();
      emissions[static_cast<std::size_t>(t * emitted + k)] = exp_of(x);
    }
  const auto emission = [&](std::int64_t t, std::int64_t s) -> const Scaled& {
    return emissions[static_cast<std::size_t>(t * emitted + (s % 2 == 0 ? 0 : s / 2 + 1))];
  };
  const auto at = [&](std::int64_t t, std::int64_t s) -> Scaled& {
    return alpha[static_cast<std::size_t>(t * states + s)];
  };
  for (std::int64_t s = 0; s < std::min<std::int64_t>(states, 2); ++s) at(0, s) = emission(0, s);
  for (std::int64_t t = 1; t < steps; ++t)
    for (std::int64_t s = 0; s < states; ++s) {
      Scaled sum = at(t - 1, s);
      if (s > 0) sum = sum + at(t - 1, s - 1);
      if (skips[static_cast<std::size_t>(s)]) sum = sum + at(t - 1, s - 2);
      at(t, s) = sum * emission(t, s);
    }
  Scaled total = at(steps - 1, states - 1);
  if (states > 1) total = total + at(steps - 1, states - 2);
  const double loss =
      total.is_zero() ? std::numeric_limits<double>::infinity()
                      : -(math::portable_log(total.value) + static_cast<double>(total.exponent) * 0.69314718055994531);
  if (!gradient || total.is_zero()) return loss;

  std::vector<Scaled> beta(static_cast<std::size_t>(states)), next(beta);
  std::vector<double> share(static_cast<std::size_t>(classes));
  for (std::int64_t t = steps - 1; t >= 0; --t) {
    for (std::int64_t s = 0; s < states; ++s) {
      const auto of = [&](std::int64_t state) { return next[static_cast<std::size_t>(state)]; };
      Scaled sum;
      if (t == steps - 1) {
        if (s >= states - 2) sum = scaled(1.0, 0);
      } else {
        sum = of(s);
        if (s + 1 < states) sum = sum + of(s + 1);
        if (skips[static_cast<std::size_t>(s + 2)]) sum = sum + of(s + 2);
      }
      // `beta` counts what comes after step t, `next` that with the step itself.
      share[static_cast<std::size_t>(label(s))] += share_of(at(t, s), sum, total);
      beta[static_cast<std::size_t>(s)] = sum * emission(t, s);
    }
    std::swap(beta, next);
    auto* const to = gradient_row(t);
    for (std::int64_t s = 0; s < states; ++s) {
      double& of_class = share[static_cast<std::size_t>(label(s))];
      to[label(s)] =
          static_cast<std::remove_reference_t<decltype(to[0])>>(static_cast<double>(to[label(s)]) - of_class);
      of_class = 0.0;  // once a class
    }
  }
  return loss;
}

template <typename T>
void all_samples(const Tensor& log_probs, const std::vector<CtcSample>& samples, const Tensor& losses,
                 const Tensor& gradient) {
  const std::int64_t steps = log_probs.size(0), n = log_probs.size(1), classes = log_probs.size(2);
  const T* values = log_probs.data<T>();
  T* to = gradient.defined() ? gradient.data<T>() : nullptr;
  lockstep::parallel_for(n, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const CtcSample& sample = samples[static_cast<std::size_t>(i)];
      const double loss = one_sample(
          sample, classes, [=](std::int64_t t) { return values + (t * n + i) * classes; },
          [=](std::int64_t t) { return to + (t * n + i) * classes; }, to != nullptr);
      losses.data<T>()[i] = static_cast<T>(loss);
      if (!to) continue;
      const bool is_finite = std::isfinite(loss);
      for (std::int64_t t = is_finite ? sample.steps : 0; t < steps; ++t)
        std::fill_n(to + (t * n + i) * classes, classes, t < sample.steps ? std::numeric_limits<T>::quiet_NaN() : T(0));
    }
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
