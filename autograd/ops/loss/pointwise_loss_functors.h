#pragma once

// Losses of two numbers, shared by every device. For kernels (.cpp and .cu) only.

#include <cmath>

#include "lockstep/autograd/ops/loss/pointwise_loss_kernels.h"
#include "lockstep/core/vector_math.h"

namespace lockstep::pointwise {

// Each functor is made from the family's parameter, and has value(x, t), by_input(x, t), its derivative by x, and
// by_target(x, t).

/// Those of the difference alone: by_target is the negative of by_input.
template <typename T, typename Derived>
struct OfDifference {
  LOCKSTEP_HOST_DEVICE T value(T x, T t) const { return static_cast<const Derived&>(*this).at(x - t); }
  LOCKSTEP_HOST_DEVICE T by_input(T x, T t) const { return static_cast<const Derived&>(*this).slope(x - t); }
  LOCKSTEP_HOST_DEVICE T by_target(T x, T t) const { return -by_input(x, t); }
};

template <typename T>
struct Mse : OfDifference<T, Mse<T>> {
  explicit Mse(double) {}
  LOCKSTEP_HOST_DEVICE T at(T d) const { return d * d; }
  LOCKSTEP_HOST_DEVICE T slope(T d) const { return T(2) * d; }
};

template <typename T>
LOCKSTEP_HOST_DEVICE T sign_of(T d) {
  return d > T(0) ? T(1) : (d < T(0) ? T(-1) : T(0));
}

/// The same, but a NaN stays one.
template <typename T>
LOCKSTEP_HOST_DEVICE T direction_of(T d) {
  return d > T(0) ? T(1) : (d < T(0) ? T(-1) : d);
}

template <typename T>
struct L1 : OfDifference<T, L1<T>> {
  explicit L1(double) {}
  LOCKSTEP_HOST_DEVICE T at(T d) const { return std::fabs(d); }
  LOCKSTEP_HOST_DEVICE T slope(T d) const { return sign_of(d); }
};

template <typename T>
struct SmoothL1 : OfDifference<T, SmoothL1<T>> {
  T beta;
  explicit SmoothL1(double beta) : beta(static_cast<T>(beta)) {}
  LOCKSTEP_HOST_DEVICE T at(T d) const {
    const T a = std::fabs(d);
    return a < beta ? T(0.5) * a * a / beta : a - T(0.5) * beta;
  }
  LOCKSTEP_HOST_DEVICE T slope(T d) const { return std::fabs(d) < beta ? d / beta : direction_of(d); }
};

template <typename T>
struct Huber : OfDifference<T, Huber<T>> {
  T delta;
  explicit Huber(double delta) : delta(static_cast<T>(delta)) {}
  LOCKSTEP_HOST_DEVICE T at(T d) const {
    const T a = std::fabs(d);
    return a <= delta ? T(0.5) * a * a : delta * (a - T(0.5) * delta);
  }
  LOCKSTEP_HOST_DEVICE T slope(T d) const { return std::fabs(d) <= delta ? d : delta * direction_of(d); }
};

template <typename T>
struct Bce {
  explicit Bce(double) {}
  LOCKSTEP_HOST_DEVICE static T bounded(T logarithm) { return logarithm < T(-100) ? T(-100) : logarithm; }
  LOCKSTEP_HOST_DEVICE T value(T x, T t) const {
    return (t - T(1)) * bounded(math::log1p_any(-x)) - t * bounded(math::log(x));
  }
  LOCKSTEP_HOST_DEVICE T by_input(T x, T t) const {
    const T spread = (T(1) - x) * x;
    return (x - t) / (spread < T(1e-12) ? T(1e-12) : spread);
  }
  LOCKSTEP_HOST_DEVICE T by_target(T x, T) const { return bounded(math::log1p_any(-x)) - bounded(math::log(x)); }
};

/// Calls f(functor) with the functor of `kind` for values of type T.
template <typename T, typename F>
void visit(PointwiseLoss kind, double parameter, F&& f) {
  switch (kind) {
    case PointwiseLoss::mse:
      return f(Mse<T>(parameter));
    case PointwiseLoss::l1:
      return f(L1<T>(parameter));
    case PointwiseLoss::smooth_l1:
      return f(SmoothL1<T>(parameter));
    case PointwiseLoss::huber:
      return f(Huber<T>(parameter));
    case PointwiseLoss::bce:
      return f(Bce<T>(parameter));
  }
}

}  // namespace lockstep::pointwise
