#include "lockstep/autograd/ops/support/in_place.h"

#include "lockstep/core/copy.h"

namespace lockstep {

Tensor without_overlap(const Tensor& source, const Tensor& target) {
  if (source.storage() != target.storage()) return source;
  const bool same_layout = source.offset() == target.offset() && source.dtype() == target.dtype() &&
                           source.sizes() == target.sizes() && source.strides() == target.strides();
  return same_layout ? source : copy_contiguous(source);
}

}  // namespace lockstep
