#include "lockstep/autograd/ops/norm/norm.h"

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"

namespace lockstep {

Tensor norm(const Tensor& x, const Shape& dims, bool keepdim) {
  LOCKSTEP_CHECK(x.is_floating_point(), "[norm] expected a floating-point tensor, found {}", name(x.dtype()));
  const Tensor squares = sum(square(x), dims, keepdim);
  // The root's slope at 0 is infinite: there the constant takes its place.
  const Tensor zero = eq(squares, 0.0);
  return where(zero, 0.0, sqrt(where(zero, 1.0, squares)));
}

}  // namespace lockstep
