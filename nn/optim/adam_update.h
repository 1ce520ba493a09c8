#pragma once

// Adam's formula for one element, shared by every device. For kernels (.cpp and .cu) only. Without fused multiply-adds;
// see Note [Optimizers].

#include <cmath>

#include "lockstep/core/vector_math.h"

namespace lockstep::optim {

template <typename C, bool kAmsgrad>
struct AdamUpdate {
  C step_size, root, keep, decay, beta1, rest1, beta2, rest2, eps;

  /// In the order of Adam::scalars().
  LOCKSTEP_HOST_DEVICE explicit AdamUpdate(const double* s)
      : step_size(static_cast<C>(s[0])),
        root(static_cast<C>(s[1])),
        keep(static_cast<C>(s[2])),
        decay(static_cast<C>(s[3])),
        beta1(static_cast<C>(s[4])),
        rest1(static_cast<C>(s[5])),
        beta2(static_cast<C>(s[6])),
        rest2(static_cast<C>(s[7])),
        eps(static_cast<C>(s[8])) {}

  /// `state` are the running means of the gradient and of its square, and with kAmsgrad the latter's largest value.
  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C grad = gradient + decay * value;
    const C mean = beta1 * state[0] + rest1 * grad;
    const C square = beta2 * state[1] + rest2 * grad * grad;
    state[0] = mean;
    state[1] = square;
    C scale = square;
    if constexpr (kAmsgrad) {
      // A NaN stays one, as in PyTorch's maximum().
      scale = state[2] > square || state[2] != state[2] ? state[2] : square;
      state[2] = scale;
    }
    return keep * value - step_size * (mean / (std::sqrt(scale) * root + eps));
  }
};

}  // namespace lockstep::optim
