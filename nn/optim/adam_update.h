#pragma once

// The formulas of Adam and its variants for one element, shared by every device. For kernels (.cpp and .cu) only.
// Without fused multiply-adds; see Note [Optimizers].

#include <cmath>

#include "lockstep/core/vector_math.h"

namespace lockstep::optim {

/// What Adam, NAdam and RAdam do before their steps differ; `state` are the running means of the gradient and of its
/// square.
template <typename C>
struct AdamMeans {
  C keep, decay, beta1, rest1, beta2, rest2, eps;

  LOCKSTEP_HOST_DEVICE explicit AdamMeans(const double* s)
      : keep(static_cast<C>(s[0])),
        decay(static_cast<C>(s[1])),
        beta1(static_cast<C>(s[2])),
        rest1(static_cast<C>(s[3])),
        beta2(static_cast<C>(s[4])),
        rest2(static_cast<C>(s[5])),
        eps(static_cast<C>(s[6])) {}

  /// Returns the gradient with its decay.
  LOCKSTEP_HOST_DEVICE C take(C value, C gradient, C* state) const {
    const C grad = gradient + decay * value;
    state[0] = beta1 * state[0] + rest1 * grad;
    state[1] = beta2 * state[1] + rest2 * grad * grad;
    return grad;
  }
};

template <typename C, bool kAmsgrad>
struct AdamUpdate {
  C step_size, root;
  AdamMeans<C> means;

  /// In the order of Adam::scalars().
  LOCKSTEP_HOST_DEVICE explicit AdamUpdate(const double* s)
      : step_size(static_cast<C>(s[0])), root(static_cast<C>(s[1])), means(s + 2) {}

  /// `state` are the running means of the gradient and of its square, and with kAmsgrad the latter's largest value.
  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    means.take(value, gradient, state);
    C scale = state[1];
    if constexpr (kAmsgrad) {
      // A NaN stays one, as in PyTorch's maximum().
      scale = state[2] > scale || state[2] != state[2] ? state[2] : scale;
      state[2] = scale;
    }
    return means.keep * value - step_size * (state[0] / (std::sqrt(scale) * root + means.eps));
  }
};

template <typename C>
struct NadamUpdate {
  C gradient_size, mean_size;
  AdamMeans<C> means;

  /// In the order of NAdam::scalars().
  LOCKSTEP_HOST_DEVICE explicit NadamUpdate(const double* s)
      : gradient_size(static_cast<C>(s[0])), mean_size(static_cast<C>(s[1])), means(s + 2) {}

  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C grad = means.take(value, gradient, state);
    const C step = gradient_size * grad + mean_size * state[0];
    return means.keep * value - step / (std::sqrt(state[1]) + means.eps);
  }
};

template <typename C>
struct RadamUpdate {
  C step_size;
  bool adaptive;
  AdamMeans<C> means;

  /// In the order of RAdam::scalars().
  LOCKSTEP_HOST_DEVICE explicit RadamUpdate(const double* s)
      : step_size(static_cast<C>(s[0])), adaptive(s[1] != 0.0), means(s + 2) {}

  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    means.take(value, gradient, state);
    const C step = adaptive ? state[0] / (std::sqrt(state[1]) + means.eps) : state[0];
    return means.keep * value - step_size * step;
  }
};

/// `state` are the running mean of the gradient and its largest size.
template <typename C>
struct AdamaxUpdate {
  C step_size, decay, beta1, rest1, beta2, eps;

  /// In the order of Adamax::scalars().
  LOCKSTEP_HOST_DEVICE explicit AdamaxUpdate(const double* s)
      : step_size(static_cast<C>(s[0])),
        decay(static_cast<C>(s[1])),
        beta1(static_cast<C>(s[2])),
        rest1(static_cast<C>(s[3])),
        beta2(static_cast<C>(s[4])),
        eps(static_cast<C>(s[5])) {}

  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C grad = gradient + decay * value;
    const C mean = beta1 * state[0] + rest1 * grad;
    const C size = (grad < C(0) ? -grad : grad) + eps, before = beta2 * state[1];
    const C largest = before > size || before != before ? before : size;  // a NaN stays one
    state[0] = mean;
    state[1] = largest;
    return value - step_size * (mean / largest);
  }
};

}  // namespace lockstep::optim
