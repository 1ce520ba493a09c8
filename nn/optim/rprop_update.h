#pragma once

// Formulas of Rprop and ASGD for one element, shared by every device. For kernels (.cpp and .cu) only. Without fused
// multiply-adds; see Note [Optimizers].

#include "lockstep/core/vector_math.h"

namespace lockstep::optim {

/// `state`: the last gradient, 0 where it was passed over, and the length of the step.
template <typename C>
struct RpropUpdate {
  C minus, plus, shortest, longest, first, direction;
  bool is_first;

  LOCKSTEP_HOST_DEVICE explicit RpropUpdate(const double* s)
      : minus(static_cast<C>(s[0])),
        plus(static_cast<C>(s[1])),
        shortest(static_cast<C>(s[2])),
        longest(static_cast<C>(s[3])),
        first(static_cast<C>(s[4])),
        direction(static_cast<C>(s[5])),
        is_first(s[6] != 0.0) {}

  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C change = gradient * state[0];
    const bool turned = change < C(0);
    C size = is_first ? first : state[1];
    size = size * (change > C(0) ? plus : turned ? minus : C(1));
    size = size < shortest ? shortest : size > longest ? longest : size;
    const C grad = turned ? C(0) : gradient;
    state[0] = grad;
    state[1] = size;
    const C sign = grad > C(0) ? C(1) : grad < C(0) ? C(-1) : C(0);
    return value - direction * sign * size;
  }
};

/// `state`: the average of the parameter.
template <typename C>
struct AsgdUpdate {
  C rate, decay, keep, share;
  bool averages;

  LOCKSTEP_HOST_DEVICE explicit AsgdUpdate(const double* s)
      : rate(static_cast<C>(s[0])),
        decay(static_cast<C>(s[1])),
        keep(static_cast<C>(s[2])),
        share(static_cast<C>(s[3])),
        averages(s[3] != 1.0) {}

  LOCKSTEP_HOST_DEVICE C operator()(C value, C gradient, C* state) const {
    const C grad = gradient + decay * value;
    const C next = keep * value - rate * grad;
    state[0] = averages ? state[0] + share * (next - state[0]) : next;
    return next;
  }
};

}  // namespace lockstep::optim
