#pragma once

#include "lockstep/autograd/node.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

/// The end of the graph at a leaf: adds the incoming gradient to the leaf's grad(), then calls the leaf's hooks.
///
/// If the leaf already has a gradient, the new one is added *into its memory*, so a gradient that is a view of a flat
/// buffer (a reducer's bucket) stays one. If it has none, the incoming tensor becomes the gradient when nobody else
/// holds its memory, else a copy does.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(const Tensor& leaf);
  ~AccumulateGrad() override;
  const char* name() const override { return "AccumulateGrad"; }
  TensorList apply(TensorList grads) override;

 private:
  IntrusivePtr<TensorImpl> leaf_;
};

}  // namespace lockstep
