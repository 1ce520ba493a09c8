#include "lockstep/autograd/ops/support/in_place.h"

#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep {

void check_no_repeats(const Tensor& target, const char* op) {
  if (target.is_contiguous()) return;
  for (int d = 0; d < target.dim(); ++d)
    LOCKSTEP_CHECK(target.strides()[d] != 0 || target.sizes()[d] <= 1,
                   "[{}] the target of shape {} repeats its elements along dimension {}, so it cannot be changed in "
                   "place; call contiguous() first",
                   op, to_string(target.sizes()), d);
}

Tensor without_overlap(const Tensor& source, const Tensor& target) {
  if (source.storage() != target.storage()) return source;
  const bool same_layout = source.offset() == target.offset() && source.dtype() == target.dtype() &&
                           source.sizes() == target.sizes() && source.strides() == target.strides();
  return same_layout ? source : copy_contiguous(source);
}

}  // namespace lockstep
