#include <cmath>

#include "lockstep/autograd/ops/linalg/linalg_named.h"
#include "lockstep/autograd/ops/norm/norm.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"

namespace lockstep::linalg {
namespace {

/// `dims` counted from 0. Throws Error unless there are two different ones.
Shape matrix_dims(const Tensor& x, const Shape& dims) {
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point() && x.dim() >= 2 && dims.dim() == 2,
                 "[matrix_norm] expected a floating-point tensor and two dimensions that it has, found {} and {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor", to_string(dims));
  const Shape found{wrap_dim(dims[0], x.dim(), "matrix_norm"), wrap_dim(dims[1], x.dim(), "matrix_norm")};
  LOCKSTEP_CHECK(found[0] != found[1], "[matrix_norm] expected two different dimensions, found {}", to_string(dims));
  return found;
}

/// In a last dimension.
Tensor singular_values(const Tensor& x, const Shape& dims) {
  return named::svd("matrix_norm", movedim(x, dims, {-2, -1}), /*full_matrices=*/false).s;
}
/// What was computed without the two dimensions, with them as ones if they are kept.
Tensor with_dims(const Tensor& value, const Tensor& x, const Shape& dims, bool keepdim) {
  if (!keepdim) return value;
  Shape sizes = x.sizes();
  sizes[static_cast<int>(dims[0])] = sizes[static_cast<int>(dims[1])] = 1;
  return value.reshape(sizes);
}

}  // namespace

Tensor matrix_norm(const Tensor& x, std::string_view order, const Shape& dims, bool keepdim) {
  LOCKSTEP_CHECK(order == "fro" || order == "nuc",
                 "[matrix_norm] expected \"fro\", \"nuc\", 1, -1, 2, -2 or an infinity, found \"{}\"", order);
  if (order == "nuc")
    return with_dims(sum(singular_values(x, matrix_dims(x, dims)), {-1}), x, matrix_dims(x, dims), keepdim);
  return vector_norm(x, 2.0, matrix_dims(x, dims), keepdim);
}

Tensor matrix_norm(const Tensor& x, double order, const Shape& dims, bool keepdim) {
  LOCKSTEP_CHECK(std::isinf(order) || std::abs(order) == 1.0 || std::abs(order) == 2.0,
                 "[matrix_norm] expected \"fro\", \"nuc\", 1, -1, 2, -2 or an infinity, found {}", order);
  const Shape found = matrix_dims(x, dims);
  const std::int64_t summed = std::isinf(order) ? found[1] : found[0];
  const std::int64_t compared = std::isinf(order) ? found[0] : found[1];
  const auto size = [&](std::int64_t dim) { return x.size(static_cast<int>(dim)); };
  if (size(compared) == 0 || (std::abs(order) == 2.0 && size(summed) == 0)) {
    LOCKSTEP_CHECK(order > 0.0, "[matrix_norm] {} has no matrix with a norm of order {}: nothing is the smallest",
                   to_string(x.sizes()), order);
    return sum(x, found, keepdim);  // zeros
  }
  if (std::abs(order) == 2.0) {
    const Tensor values = singular_values(x, found);  // equal ones share the slope
    return with_dims(order > 0.0 ? max(values, {-1}) : min(values, {-1}), x, found, keepdim);
  }
  const Tensor sums = sum(abs(x), {summed}, true);
  const Tensor extreme = order > 0.0 ? max(sums, {compared}, true) : min(sums, {compared}, true);
  return keepdim ? extreme : sum(extreme, found);
}

Tensor norm(const Tensor& x) {
  return vector_norm(x);
}

Tensor norm(const Tensor& x, std::string_view order, const Shape& dims, bool keepdim) {
  return matrix_norm(x, order, dims.empty() ? Shape{0, 1} : dims, keepdim);
}

Tensor norm(const Tensor& x, double order, const Shape& dims, bool keepdim) {
  LOCKSTEP_CHECK(x.defined(), "[norm] the tensor is undefined");
  const int count = dims.empty() ? x.dim() : dims.dim();
  LOCKSTEP_CHECK(count == 1 || count == 2, "[norm] expected one dimension or two for an order, found {}", count);
  if (count == 1) return vector_norm(x, order, dims, keepdim);
  return matrix_norm(x, order, dims.empty() ? Shape{0, 1} : dims, keepdim);
}

}  // namespace lockstep::linalg
