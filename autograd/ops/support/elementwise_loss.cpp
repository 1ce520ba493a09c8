#include "lockstep/autograd/ops/support/elementwise_loss.h"

#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {

void check_same_kind(const Tensor& input, const Tensor& target, const char* op) {
  LOCKSTEP_CHECK(input.defined() && target.defined(), "[{}] {} is undefined", op, input.defined() ? "target" : "input");
  LOCKSTEP_CHECK(input.is_floating_point(), "[{}] expected a floating-point input, found {}", op, name(input.dtype()));
  LOCKSTEP_CHECK(target.sizes() == input.sizes(),
                 "[{}] expected a target of the input's shape {}, found {}; reshape or expand it", op,
                 to_string(input.sizes()), to_string(target.sizes()));
  LOCKSTEP_CHECK(target.dtype() == input.dtype(), "[{}] expected a target of dtype {} like the input, found {}", op,
                 name(input.dtype()), name(target.dtype()));
  LOCKSTEP_CHECK(target.device() == input.device(), "[{}] the target is on {}, the input on {}; move one with to()", op,
                 to_string(target.device()), to_string(input.device()));
}

Tensor empty_loss(const Tensor& input, Reduction reduction) {
  return empty(reduction == Reduction::none ? input.sizes() : Shape{}, options_of(input));
}

}  // namespace lockstep
