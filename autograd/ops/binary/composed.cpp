// Functions of the family that are composed of others.

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/core/check.h"

namespace lockstep {

Tensor logaddexp(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[logaddexp] a tensor is undefined");
  const Shape sizes = broadcast_shapes(a.sizes(), b.sizes(), "logaddexp");
  return logsumexp(stack({a.expand(sizes), b.expand(sizes)}), 0);
}

Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return add(x, mul(a, b), value);
}
Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return add(x, div(a, b), value);
}

Tensor floor_divide(const Tensor& a, const Tensor& b) {
  return div(a, b, RoundingMode::floor);
}
Tensor floor_divide(const Tensor& a, Scalar b) {
  return div(a, b, RoundingMode::floor);
}

Tensor operator%(const Tensor& a, const Tensor& b) {
  return remainder(a, b);
}
Tensor operator%(const Tensor& a, Scalar b) {
  return remainder(a, b);
}

}  // namespace lockstep
