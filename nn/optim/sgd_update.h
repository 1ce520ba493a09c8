#pragma once

// SGD's formulas for one element, shared by every device. For kernels (.cpp and .cu) only. Without fused multiply-adds;
// see Note [Optimizers].

#include "lockstep/core/vector_math.h"

namespace lockstep::optim {

template <typename C>
struct SgdPlain {
  C lr, decay;

  LOCKSTEP_HOST_DEVICE explicit SgdPlain(const double* s) : lr(static_cast<C>(s[0])), decay(static_cast<C>(s[1])) {}

  /// The parameter's new value.
  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C*) const { return value - lr * (gradient + decay * value); }
};

template <typename C, bool kNesterov>
struct SgdMomentum {
  C lr, decay, momentum, share;

  LOCKSTEP_HOST_DEVICE explicit SgdMomentum(const double* s)
      : lr(static_cast<C>(s[0])),
        decay(static_cast<C>(s[1])),
        momentum(static_cast<C>(s[2])),
        share(static_cast<C>(s[3])) {}

  /// `state` is the momentum buffer's element.
  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C grad = gradient + decay * value;
    const C buffer = momentum * state[0] + share * grad;
    state[0] = buffer;
    return value - lr * (kNesterov ? grad + momentum * buffer : buffer);
  }
};

}  // namespace lockstep::optim
