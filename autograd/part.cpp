#include "lockstep/autograd/part.h"

#include "lockstep/autograd/add_values.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {

TensorList SliceBackward::apply(TensorList grads) {
  Tensor full = zeros(sizes, options_of(grads[0]));
  if (grads[0].numel() > 0) copy_values(grads[0], part_of(full));
  return {full};
}

bool SliceBackward::add_to(const Tensor& grad, const Tensor& sum) {
  if (sum.sizes() != sizes || sum.dtype() != grad.dtype()) return false;
  if (grad.numel() > 0) add_values_(part_of(sum), grad);
  return true;
}

TensorList SliceBackward::apply_recorded(TensorList grads) {
  return applied_linearly(this, grads[0], [self = KeptNode(this)](const Tensor& x) {
    return copy_contiguous(self->part_of(as_contiguous(x)));
  });
}

}  // namespace lockstep
