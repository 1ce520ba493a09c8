#pragma once

// Formulas of RMSprop, Adagrad and Adadelta for one element, shared by every device. For kernels (.cpp and .cu) only.
// Without fused multiply-adds; see Note [Optimizers].

#include <cmath>

#include "lockstep/core/vector_math.h"

namespace lockstep::optim {

/// `state`: the running mean of squares, then the gradient's if centered, then the momentum.
template <typename C, bool kCentered, bool kMomentum>
struct RmspropUpdate {
  C lr, decay, alpha, rest, eps, momentum;

  LOCKSTEP_HOST_DEVICE explicit RmspropUpdate(const double* s)
      : lr(static_cast<C>(s[0])),
        decay(static_cast<C>(s[1])),
        alpha(static_cast<C>(s[2])),
        rest(static_cast<C>(s[3])),
        eps(static_cast<C>(s[4])),
        momentum(static_cast<C>(s[5])) {}

  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C grad = gradient + decay * value;
    const C square = alpha * state[0] + rest * grad * grad;
    state[0] = square;
    C under = square;
    if constexpr (kCentered) {
      const C mean = alpha * state[1] + rest * grad;
      state[1] = mean;
      under = square - mean * mean;
    }
    const C scaled = grad / (std::sqrt(under) + eps);
    if constexpr (!kMomentum) return value - lr * scaled;
    constexpr int kBuffer = kCentered ? 2 : 1;
    const C buffer = momentum * state[kBuffer] + scaled;
    state[kBuffer] = buffer;
    return value - lr * buffer;
  }
};

template <typename C>
struct AdagradUpdate {
  C lr, decay, eps;

  LOCKSTEP_HOST_DEVICE explicit AdagradUpdate(const double* s)
      : lr(static_cast<C>(s[0])), decay(static_cast<C>(s[1])), eps(static_cast<C>(s[2])) {}

  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C grad = gradient + decay * value;
    const C sum = state[0] + grad * grad;
    state[0] = sum;
    return value - lr * (grad / (std::sqrt(sum) + eps));
  }
};

template <typename C>
struct AdadeltaUpdate {
  C lr, decay, rho, rest, eps;

  LOCKSTEP_HOST_DEVICE explicit AdadeltaUpdate(const double* s)
      : lr(static_cast<C>(s[0])),
        decay(static_cast<C>(s[1])),
        rho(static_cast<C>(s[2])),
        rest(static_cast<C>(s[3])),
        eps(static_cast<C>(s[4])) {}

  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C grad = gradient + decay * value;
    const C square = rho * state[0] + rest * grad * grad;
    const C delta = std::sqrt(state[1] + eps) / std::sqrt(square + eps) * grad;
    state[0] = square;
    state[1] = rho * state[1] + rest * delta * delta;
    return value - lr * delta;
  }
};

}  // namespace lockstep::optim
