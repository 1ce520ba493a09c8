#include "lockstep/autograd/ops/support/in_place.h"

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep {

Tensor without_overlap(const Tensor& source, const Tensor& target) {
  if (source.storage() != target.storage()) return source;
  const bool same_layout = source.offset() == target.offset() && source.dtype() == target.dtype() &&
                           source.sizes() == target.sizes() && source.strides() == target.strides();
  return same_layout ? source : copy_contiguous(source);
}

void check_result_fits(DType result, const Tensor& target, const char* op) {
  const DType dtype = target.dtype();
  const bool fits = is_floating_point(dtype) || (!is_floating_point(result) && (dtype != kBool || result == kBool));
  LOCKSTEP_CHECK(fits, "[{}] a {} result does not go into a {} tensor; convert the tensor with to() first", op,
                 name(result), name(dtype));
}

}  // namespace lockstep
