#pragma once

// The update of running statistics, for the kernels that do it. For .cu files only.

#include "lockstep/autograd/ops/batch_norm/batch_norm_kernels.h"
#include "lockstep/core/cuda/element.cuh"

namespace lockstep {
namespace {

/// One of the two.
struct RunningValue {
  cuda::Source<double> value, old;
  cuda::Target<double> updated;
  double take;

  RunningValue(const Tensor& value, const Tensor& running, double take)
      : value(value), old(running), updated(running), take(take) {}
  __device__ void update(std::int64_t c, double keep) const {
    if (updated.wanted()) updated.set(c, keep * old.at(c) + take * value.at(c));
  }
};

struct Running {
  RunningValue mean, var;
  std::int64_t* batches;
  double keep;

  Running(const Tensor& mean, const Tensor& var, const BatchNormRunning& running)
      : mean(mean, running.mean, running.momentum),
        var(var, running.var, running.momentum * running.unbiased),
        batches(running.batches.defined() ? running.batches.data<std::int64_t>() : nullptr),
        keep(1.0 - running.momentum) {}
  /// By the thread that wrote the statistics of channel c, or later.
  __device__ void update(std::int64_t c) const {
    mean.update(c, keep);
    var.update(c, keep);
    if (c == 0 && batches) ++*batches;
  }
};

}  // namespace
}  // namespace lockstep
