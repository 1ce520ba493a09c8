#pragma once

// The pool as part of Note [Pending values]. For operations (.cpp files) only.

#include "lockstep/autograd/ops/support/pool2d_geometry.h"
#include "lockstep/core/computation.h"

namespace lockstep {

/// A pool of a pending tensor. Result 0: the maxima; result 1, if there is one: their positions.
class MaxPool2dComputation final : public Computation {
 public:
  MaxPool2dComputation(const Pool2dGeometry& geometry, const Tensor& x) : Computation({x}), geometry_(geometry) {}

  const Pool2dGeometry& geometry() const { return geometry_; }

 private:
  void compute() override;

  Pool2dGeometry geometry_;
};

/// The gradient of a pool of is_max_pool_2x2(): result 0 is zero but for one element in each window.
class PooledGradient final : public Computation {
 public:
  /// Inputs 0 and 1: gradient and positions of the pool's result, contiguous.
  PooledGradient(const Pool2dGeometry& geometry, const Tensor& grad, const Tensor& positions)
      : Computation({grad, positions}), geometry_(geometry) {}

  const Pool2dGeometry& geometry() const { return geometry_; }

 private:
  void compute() override;

  Pool2dGeometry geometry_;
};

/// The gradient of a relu whose result went into a pool and whose gradient is that pool's, pending: one of that kind.
/// Undefined if `grad` is not such a gradient.
Tensor relu_of_pooled_gradient(const Tensor& grad);

}  // namespace lockstep
