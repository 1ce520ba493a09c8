#include <limits>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

Tensor truth(const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  return x.dtype() == kBool ? x : ne(x, 0);
}

const Tensor& checked_bool(const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(x.defined() && x.dtype() == kBool,
                 "[operator{}] expected bool tensors, found {}; compare first, or use the logical_ functions", op,
                 x.defined() ? name(x.dtype()) : "an undefined one");
  return x;
}

}  // namespace

Tensor logical_not(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[logical_not] the tensor is undefined");
  return eq(x, x.dtype() == kBool ? Scalar(false) : Scalar(0));
}
Tensor logical_and(const Tensor& a, const Tensor& b) {
  return truth(a, "logical_and") * truth(b, "logical_and");
}
Tensor logical_or(const Tensor& a, const Tensor& b) {
  return truth(a, "logical_or") + truth(b, "logical_or");
}
Tensor logical_xor(const Tensor& a, const Tensor& b) {
  return ne(truth(a, "logical_xor"), truth(b, "logical_xor"));
}
Tensor operator~(const Tensor& x) {
  return logical_not(checked_bool(x, "~"));
}
Tensor operator&(const Tensor& a, const Tensor& b) {
  return checked_bool(a, "&") * checked_bool(b, "&");
}
Tensor operator|(const Tensor& a, const Tensor& b) {
  return checked_bool(a, "|") + checked_bool(b, "|");
}
Tensor operator^(const Tensor& a, const Tensor& b) {
  return ne(checked_bool(a, "^"), checked_bool(b, "^"));
}

bool equal(const Tensor& a, const Tensor& b) {
  const NoGradGuard values_only;
  return a.sizes() == b.sizes() && all(eq(a, b)).item<bool>();
}

bool allclose(const Tensor& a, const Tensor& b, double rtol, double atol, bool equal_nan) {
  const NoGradGuard values_only;
  Tensor close =
      eq(a, b) + (abs(a - b) <= abs(b) * rtol + atol) * lt(abs(b), Scalar(std::numeric_limits<double>::infinity()));
  if (equal_nan) close = close + ne(a, a) * ne(b, b);
  return all(close).item<bool>();
}

}  // namespace lockstep
