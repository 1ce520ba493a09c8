#include "lockstep/autograd/ops/norm/norm.h"

#include <cmath>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/reduce/reduce_dims.h"
#include "lockstep/autograd/ops/reduce/reduce_kernels.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

/// x^exponent with 0 where `x` is 0, and so where slopes are infinite or not defined.
Tensor power_or_zero(const Tensor& x, double exponent) {
  return where(eq(x, 0.0), 0.0, pow(x, exponent));
}

Tensor value_of(const Tensor& x, double order, const Shape& dims, bool keepdim) {
  if (order == 2.0) return sqrt(sum_of_squares(x, dims, keepdim));
  if (std::isinf(order)) return order > 0 ? max(abs(x), dims, keepdim) : min(abs(x), dims, keepdim);
  return pow(sum(pow(abs(x), order), dims, keepdim), 1.0 / order);
}

/// The formulas of PyTorch, which say what the slope is at 0, at infinity and at NaN.
Tensor gradient_of(const Tensor& grad, const Tensor& x, const Tensor& norm, double order, const Shape& dims) {
  if (order == 2.0) return x * where(eq(norm, 0.0), 0.0, grad / norm);
  if (std::isinf(order)) {
    const Tensor magnitudes = abs(x);
    const Tensor extreme = (eq(magnitudes, norm) + isnan(x)).to(x.dtype());
    return sign(x) * (grad / sum(extreme, dims, true) * extreme);
  }
  if (order < 1.0) return sign(x) * power_or_zero(abs(x), order - 1.0) * grad * pow(norm, 1.0 - order);
  const Tensor scale = where(eq(norm, 0.0), 0.0, grad / pow(norm, order - 1.0));
  return order < 2.0 ? sign(x) * pow(abs(x), order - 1.0) * scale : x * pow(abs(x), order - 2.0) * scale;
}

struct VectorNormBackward final : Node {
  double order = 2.0;
  Shape dims;
  ReduceDims plan;
  bool is_distance = false;  // of rows, where PyTorch has other formulas

  const char* name() const override { return "VectorNormBackward"; }
  TensorList apply(TensorList grads) override {
    if (!grads[0].defined()) return TensorList(1);
    const Tensor grad = plan.with_kept_dims(grads[0]), norm = plan.with_kept_dims(saved(1));
    return {slope(grad, saved(0), norm)};
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor grad = grads[0].reshape(plan.kept_sizes), norm = saved_output(1).reshape(plan.kept_sizes);
    const Tensor x = saved_input(0, 0);
    if (order != 2.0) return {slope(grad, x, norm)};
    return {x * where(eq(norm, 0.0), 0.0, grad / where(eq(norm, 0.0), 1.0, norm))};
  }

 private:
  /// Of a distance each of the largest differences has the whole slope, and equal coordinates have none even beside
  /// infinite ones.
  Tensor slope(const Tensor& grad, const Tensor& x, const Tensor& norm) const {
    if (is_distance && std::isinf(order)) return sign(x) * (grad * eq(abs(x), norm).to(x.dtype()));
    const Tensor usual = gradient_of(grad, x, norm, order, dims);
    return is_distance && order < 1.0 ? where(eq(x, 0.0), 0.0, usual) : usual;
  }
};

Tensor norm_along(const Tensor& x, double order, const Shape& dims, bool keepdim, bool is_distance) {
  LOCKSTEP_CHECK(x.is_floating_point(), "[vector_norm] expected a floating-point tensor, found {}", name(x.dtype()));
  if (order == 0.0) return flat_in(sum(ne(x, 0.0), dims, keepdim, x.dtype()), x);
  if (order == 1.0) return sum(abs(x), dims, keepdim);
  if (std::isinf(order))
    LOCKSTEP_CHECK(
        x.numel() > 0 || ReduceDims(x, dims, keepdim, "vector_norm").kept_sizes.numel() == 0,
        "[vector_norm] shape {} has no elements along the dimensions of the norm, and none is the {} of none; "
        "expected at least one, or an order that is finite",
        to_string(x.sizes()), order > 0 ? "largest" : "smallest");
  if (element_size(x.dtype()) == 2) return norm_along(x.to(kFloat32), order, dims, keepdim, is_distance).to(x.dtype());
  Tensor result;
  {
    const NoGradGuard values_only;
    result = value_of(x, order, dims, keepdim);
  }
  if (auto* node = record<VectorNormBackward>(result, {&x})) {
    node->save(x, result);
    node->order = order;
    node->dims = dims;
    node->is_distance = is_distance;
    node->plan = ReduceDims(x, dims, keepdim, "vector_norm");
  }
  return result;
}

}  // namespace

Tensor norm(const Tensor& x, const Shape& dims, bool keepdim) {
  LOCKSTEP_CHECK(x.is_floating_point(), "[norm] expected a floating-point tensor, found {}", name(x.dtype()));
  return vector_norm(x, 2.0, dims, keepdim);
}

Tensor vector_norm(const Tensor& given, double order, const Shape& dims, bool keepdim, std::optional<DType> dtype) {
  LOCKSTEP_CHECK(given.defined(), "[vector_norm] the tensor is undefined");
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& t) { return vector_norm(t, order, dims, keepdim, dtype); }, given);
  return norm_along(dtype ? given.to(*dtype) : given, order, dims, keepdim, /*is_distance=*/false);
}

Tensor normalize(const Tensor& x, double order, std::int64_t dim, double eps) {
  return x / clamp(vector_norm(x, order, {dim}, true), eps);
}

Tensor cosine_similarity(const Tensor& a, const Tensor& b, std::int64_t dim, double eps) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[cosine_similarity] a tensor is undefined");
  const Shape sizes = broadcast_shapes(a.sizes(), b.sizes(), "cosine_similarity");
  const Tensor wide_a = a.expand(sizes), wide_b = b.expand(sizes);
  const Tensor x = wide_a / clamp(vector_norm(wide_a, 2.0, {dim}, true), eps);
  const Tensor y = wide_b / clamp(vector_norm(wide_b, 2.0, {dim}, true), eps);
  return sum(x * y, {dim});
}

Tensor pairwise_distance(const Tensor& a, const Tensor& b, double order, double eps, bool keepdim) {
  return vector_norm(a - b + eps, order, {-1}, keepdim);
}

namespace {

constexpr std::int64_t kFewRows = 25;  // PyTorch's

// |x - y|^2 = |x|^2 - 2 x y + |y|^2, by a product. The gradient at a distance of 0 is 0.
Tensor euclidean_distances(const Tensor& a, const Tensor& b) {
  const Tensor squares =
      sum(square(a), {-1}, true) + sum(square(b), {-1}, true).transpose(-2, -1) - matmul(a * 2.0, b.transpose(-2, -1));
  const Tensor equal = le(squares.detach(), 0.0);  // not NaN
  return where(equal, 0.0, sqrt(where(equal, 1.0, squares)));
}

}  // namespace

Tensor cdist(const Tensor& a, const Tensor& b, double order) {
  LOCKSTEP_CHECK(a.defined() && b.defined() && a.dim() >= 2 && b.dim() >= 2 && a.size(-1) == b.size(-1),
                 "[cdist] expected rows of equal length in tensors of at least two dimensions, found {} and {}",
                 a.defined() ? to_string(a.sizes()) : "an undefined tensor",
                 b.defined() ? to_string(b.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(order >= 0.0, "[cdist] expected an order of at least 0, found {}", order);
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([&](const Tensor& x, const Tensor& y) { return cdist(x, y, order); }, a, b);
  const bool many = a.size(-2) > kFewRows || b.size(-2) > kFewRows;
  if (order == 2.0 && many && a.dtype() == b.dtype() && a.is_floating_point()) {
    if (a.dtype() == kFloat32 || a.dtype() == kFloat64) return euclidean_distances(a, b);
    return euclidean_distances(a.to(kFloat32), b.to(kFloat32)).to(a.dtype());  // rounded once
  }
  const Tensor differences = a.unsqueeze(-2) - b.unsqueeze(-3);
  // Of nothing there is no largest.
  return norm_along(differences, a.size(-1) == 0 ? 1.0 : order, {-1}, false, /*is_distance=*/true);
}

}  // namespace lockstep
