#include "lockstep/autograd/ops/norm/norm.h"

#include <cmath>

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

Tensor vector_norm(const Tensor& given, double order, const Shape& dims, bool keepdim, std::optional<DType> dtype) {
  LOCKSTEP_CHECK(given.defined(), "[vector_norm] the tensor is undefined");
  const Tensor x = dtype ? given.to(*dtype) : given;
  LOCKSTEP_CHECK(x.is_floating_point(), "[vector_norm] expected a floating-point tensor, found {}", name(x.dtype()));
  if (order == 2.0) return norm(x, dims, keepdim);
  if (order == 0.0) return sum(ne(x, 0.0), dims, keepdim, x.dtype());
  const Tensor magnitudes = abs(x);
  if (order == 1.0) return sum(magnitudes, dims, keepdim);
  if (std::isinf(order)) return order > 0 ? max(magnitudes, dims, keepdim) : min(magnitudes, dims, keepdim);
  if (element_size(x.dtype()) == 2) return vector_norm(x, order, dims, keepdim, kFloat32).to(x.dtype());
  // Where a slope is infinite or not defined, a constant takes the place.
  const Tensor zero = eq(x, 0.0);
  const Tensor powers = where(zero, order > 0 ? 0.0 : INFINITY, pow(where(zero, 1.0, magnitudes), order));
  const Tensor total = sum(powers, dims, keepdim);
  const Tensor flat = total == (order > 0 ? 0.0 : INFINITY);
  return where(flat, 0.0, pow(where(flat, 1.0, total), 1.0 / order));
}

}  // namespace lockstep
