#pragma once

// What a batch norm makes of an element, for the kernels that do it and those that do it again. For .cu files only.

#include <cmath>

#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/core/cuda/element.cuh"
#include "lockstep/core/dispatch.h"

namespace lockstep {
namespace {

/// The element as it would be read back from memory.
template <typename T>
__device__ inline compute_t<T> rounded(compute_t<T> value) {
  return cuda::from_element<compute_t<T>>(cuda::to_element<T>(value));
}

/// y = (x - mean) * slope + level, and what follows it: a relu, a sum, another relu.
template <typename T>
struct Apply {
  using C = compute_t<T>;
  const C *mean, *var;
  cuda::Source<C> weight, bias;
  C eps;
  bool relu_before = false, relu_after = false;

  Apply(const Tensor& mean, const Tensor& var, const Tensor& weight, const Tensor& bias, double eps,
        const BatchNormFollowing& following = {})
      : mean(mean.data<C>()),
        var(var.data<C>()),
        weight(weight, C(1)),
        bias(bias),
        eps(static_cast<C>(eps)),
        relu_before(following.relu_before),
        relu_after(following.relu_after) {}

  struct Factors {
    C mean, slope, level;
  };
  __device__ Factors at(std::int64_t c) const {
    return {mean[c], C(1) / std::sqrt(var[c] + eps) * weight.at(c), bias.at(c)};
  }
  /// Of the compiler's free choice this has nothing, so that it has the same sign each time.
  __device__ static C normalized(const Factors& f, C x) { return std::fma(x - f.mean, f.slope, f.level); }
  __device__ static C relu(C x) { return x < C(0) ? C(0) : x; }

  __device__ C operator()(const Factors& f, C x) const {
    const C value = normalized(f, x);
    return relu_before ? relu(value) : value;
  }
  __device__ C operator()(const Factors& f, C x, C other) const {
    const C value = rounded<T>(operator()(f, x)) + other;
    return relu_after ? relu(rounded<T>(value)) : value;
  }
};

/// What of a gradient comes through the relu behind it.
template <typename T>
__device__ inline compute_t<T> through_relu(const typename Apply<T>::Factors& f, compute_t<T> grad, compute_t<T> x) {
  return rounded<T>(Apply<T>::normalized(f, x)) <= compute_t<T>(0) ? compute_t<T>(0) : grad;
}

}  // namespace
}  // namespace lockstep
