#include "lockstep/autograd/ops/binary/operands.h"

#include "lockstep/autograd/ops/support/sum_to.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep::binary {

Tensor Form::fit(const Tensor& grad) const {
  if (grad.sizes() == sizes && grad.dtype() == dtype) return grad;
  return cast_values(sum_to(grad, sizes), dtype);
}

void check_operands(const Operand& a, const Operand& b, const char* op) {
  LOCKSTEP_CHECK((!a.tensor || a.tensor->defined()) && (!b.tensor || b.tensor->defined()),
                 "[{}] an operand is undefined", op);
  LOCKSTEP_CHECK(!a.tensor || !b.tensor || a.tensor->device() == b.tensor->device(),
                 "[{}] expected both operands on one device, found {} and {}; move one with to()", op,
                 to_string(a.tensor->device()), to_string(b.tensor->device()));
}

DType promote(const Operand& a, const Operand& b) {
  if (!a.tensor) return result_dtype(b.tensor->dtype(), a.scalar);
  if (!b.tensor) return result_dtype(a.tensor->dtype(), b.scalar);
  return a.tensor->dtype() == b.tensor->dtype() ? a.tensor->dtype()
                                                : promote_types(a.tensor->dtype(), b.tensor->dtype());
}

Tensor make_result(const Operand& a, const Operand& b, DType dtype, const char* op) {
  const Tensor& first = a.tensor ? *a.tensor : *b.tensor;
  const TensorOptions options{.dtype = dtype, .device = first.device()};
  if (!a.tensor || !b.tensor || b.tensor->sizes() == first.sizes()) return empty(first.sizes(), options);
  return empty(broadcast_shapes(first.sizes(), b.tensor->sizes(), op), options);
}

}  // namespace lockstep::binary
