#include "lockstep/autograd/ops/support/sum_to.h"

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {

Tensor sum_to(const Tensor& grad, const Shape& sizes) {
  if (grad.sizes() == sizes) return grad;
  Shape padded = Shape::filled(grad.dim(), 1);
  const int lead = grad.dim() - sizes.dim();
  LOCKSTEP_ASSERT(lead >= 0, "shape {} does not broadcast to {}", to_string(sizes), to_string(grad.sizes()));
  for (int d = 0; d < sizes.dim(); ++d) padded[lead + d] = sizes[d];
  for (int d = 0; d < grad.dim(); ++d)
    LOCKSTEP_ASSERT(padded[d] == 1 || padded[d] == grad.sizes()[d], "shape {} does not broadcast to {}",
                    to_string(sizes), to_string(grad.sizes()));
  Tensor out = empty(sizes, options_of(grad));
  reduce_sum(grad, out.as_strided(padded, contiguous_strides(padded), 0));
  return out;
}

Tensor recorded_sum_to(const Tensor& grad, const Shape& sizes) {
  const Shape from = grad.sizes();
  return apply_linear(grad, {[sizes](const Tensor& x) { return sum_to(x, sizes); },
                             [from](const Tensor& x) { return as_contiguous(x.expand(from)); }});
}

}  // namespace lockstep
