// Matrix products by the names of their shapes.

#include <algorithm>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/autograd_meta.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

Tensor product(const Tensor& a, const Tensor& b, int dims_a, int dims_b, const char* op, const char* what) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[{}] a tensor is undefined", op);
  LOCKSTEP_CHECK(a.dim() == dims_a && b.dim() == dims_b, "[{}] expected {}, found shapes {} and {}", op, what,
                 to_string(a.sizes()), to_string(b.sizes()));
  return matmul(a, b);
}

/// Under autocast: of the types that the tensors have, the widest.
template <typename Op, typename... Tensors>
Tensor in_widest(Op&& op, const Tensor& first, const Tensors&... others) {
  const autocast::Pause pause;
  DType widest = first.dtype();
  const auto look = [&](const Tensor& t) { widest = t.defined() ? promote_types(widest, t.dtype()) : widest; };
  (look(others), ...);
  const auto cast = [&](const Tensor& t) { return t.defined() ? t.to(widest) : t; };
  return op(cast(first), cast(others)...);
}

/// mv and addmv: PyTorch's autocasting has them in the guard's type on CUDA devices alone.
template <typename Op, typename... Tensors>
Tensor by_device(Op&& op, const Tensor& first, const Tensors&... others) {
  return first.device().is_cuda() ? autocast::in_low(op, first, others...) : in_widest(op, first, others...);
}

/// x * factor; integers stay integers under whole factors.
Tensor times(const Tensor& x, double factor) {
  if (factor == 1.0) return x;
  const bool whole = !x.is_floating_point() && Scalar(factor).is_whole();
  return whole ? x * static_cast<std::int64_t>(factor) : x * factor;
}

Tensor plus_product(const Tensor& x, const Tensor& product, double beta, double alpha, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] x is undefined", op);
  LOCKSTEP_CHECK(broadcast_shapes(x.sizes(), product.sizes(), op) == product.sizes(),
                 "[{}] expected an x that broadcasts to the product's shape {}, found {}", op,
                 to_string(product.sizes()), to_string(x.sizes()));
  const Tensor scaled = alpha == 0.0 ? flat_in(zeros_like(product), product) : times(product, alpha);
  if (beta != 0.0) return times(x, beta) + scaled;
  const Tensor out = scaled.to(binary::promote(x, scaled));
  return needs_grad(x) ? flat_in(out, x) : out;
}

}  // namespace

Tensor mm(const Tensor& a, const Tensor& b) {
  return product(a, b, 2, 2, "mm", "two matrices");
}
Tensor bmm(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(!a.defined() || !b.defined() || a.dim() != 3 || b.dim() != 3 || a.size(0) == b.size(0),
                 "[bmm] expected batches of one size, found shapes {} and {}", to_string(a.sizes()),
                 to_string(b.sizes()));
  return product(a, b, 3, 3, "bmm", "two batches of matrices");
}
Tensor mv(const Tensor& a, const Tensor& b) {
  if (autocast::is_active && a.defined() && b.defined()) [[unlikely]]
    return by_device([](const auto&... t) { return mv(t...); }, a, b);
  return product(a, b, 2, 1, "mv", "a matrix and a vector");
}
Tensor dot(const Tensor& a, const Tensor& b) {
  if (autocast::is_active && a.defined() && b.defined()) [[unlikely]]
    return in_widest([](const auto&... t) { return dot(t...); }, a, b);
  const auto reduces = [](const Tensor& x) { return x.defined() && (x.dtype() == kFloat32 || x.dtype() == kFloat64); };
  // One element of a product is one chain of additions; a sum has many.
  if (reduces(a) && reduces(b) && a.dtype() == b.dtype() && a.sizes() == b.sizes() && a.dim() == 1 &&
      a.device() == b.device())
    return sum(a * b);
  return product(a, b, 1, 1, "dot", "two vectors");
}
Tensor outer(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.dim() == 1 && b.dim() == 1, "[outer] expected two vectors, found shapes {} and {}",
                 to_string(a.sizes()), to_string(b.sizes()));
  return a.unsqueeze(1) * b;
}
Tensor addmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return addmm(t..., beta, alpha); }, x, a, b);
  return plus_product(x, product(a, b, 2, 2, "addmm", "two matrices"), beta, alpha, "addmm");
}
Tensor baddbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return baddbmm(t..., beta, alpha); }, x, a, b);
  return plus_product(x, bmm(a, b), beta, alpha, "baddbmm");
}

Tensor addmv(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
  if (autocast::is_active && x.defined() && a.defined() && b.defined()) [[unlikely]]
    return by_device([&](const auto&... t) { return addmv(t..., beta, alpha); }, x, a, b);
  return plus_product(x, product(a, b, 2, 1, "addmv", "a matrix and a vector"), beta, alpha, "addmv");
}
Tensor addr(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
  return plus_product(x, outer(a, b), beta, alpha, "addr");
}
Tensor addbmm(const Tensor& x, const Tensor& a, const Tensor& b, double beta, double alpha) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_low([&](const auto&... t) { return addbmm(t..., beta, alpha); }, x, a, b);
  return plus_product(x, sum(bmm(a, b), {0}).to(a.dtype()), beta, alpha, "addbmm");
}

Tensor inner(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[inner] a tensor is undefined");
  if (a.dim() == 0 || b.dim() == 0) return a * b;
  return tensordot(a, b, Shape{-1}, Shape{-1});
}

Tensor tensordot(const Tensor& a, const Tensor& b, std::int64_t dims) {
  LOCKSTEP_CHECK(a.defined() && b.defined() && dims >= 0 && dims <= a.dim() && dims <= b.dim(),
                 "[tensordot] expected a number of dimensions that both tensors have, found {}", dims);
  Shape of_a, of_b;
  for (std::int64_t i = 0; i < dims; ++i) {
    of_a.push_back(a.dim() - dims + i);
    of_b.push_back(i);
  }
  return tensordot(a, b, of_a, of_b);
}

Tensor tensordot(const Tensor& a, const Tensor& b, const Shape& dims_a, const Shape& dims_b) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[tensordot] a tensor is undefined");
  LOCKSTEP_CHECK(dims_a.dim() == dims_b.dim(), "[tensordot] expected as many dimensions of both, found {} and {}",
                 to_string(dims_a), to_string(dims_b));
  const auto split = [](const Tensor& x, const Shape& dims, Shape& rest) {
    Shape named = Shape::filled(x.dim(), 0), summed;
    for (const std::int64_t dim : dims) {
      const int d = wrap_dim(dim, x.dim(), "tensordot");
      LOCKSTEP_CHECK(x.dim() > 0 && named[d]++ == 0, "[tensordot] dimension {} is given twice", dim);
      summed.push_back(d);
    }
    for (int d = 0; d < x.dim(); ++d)
      if (named[d] == 0) rest.push_back(d);
    return summed;
  };
  // A dimension of size 1 goes with all elements of the other's.
  Tensor wide_a = a, wide_b = b;
  for (int i = 0; i < dims_a.dim(); ++i) {
    const int d_a = wrap_dim(dims_a[i], a.dim(), "tensordot"), d_b = wrap_dim(dims_b[i], b.dim(), "tensordot");
    const std::int64_t size_a = a.dim() == 0 ? 1 : a.size(d_a), size_b = b.dim() == 0 ? 1 : b.size(d_b);
    if (size_a == 1 && size_b > 1) wide_b = sum(wide_b, {d_b}, true).to(b.dtype());
    if (size_b == 1 && size_a > 1) wide_a = sum(wide_a, {d_a}, true).to(a.dtype());
  }
  if (!wide_a.is_same(a) || !wide_b.is_same(b)) return tensordot(wide_a, wide_b, dims_a, dims_b);
  Shape rest_a, rest_b, sizes, order_a, order_b;
  const Shape summed_a = split(a, dims_a, rest_a), summed_b = split(b, dims_b, rest_b);
  std::int64_t rows = 1, terms = 1, columns = 1;
  for (int i = 0; i < summed_a.dim(); ++i) {
    const std::int64_t size = a.size(summed_a[i]);
    LOCKSTEP_CHECK(size == b.size(summed_b[i]), "[tensordot] dimension {} of {} and {} of {} have different sizes",
                   summed_a[i], to_string(a.sizes()), summed_b[i], to_string(b.sizes()));
    terms *= size;
  }
  for (const std::int64_t d : rest_a) {
    order_a.push_back(d);
    sizes.push_back(a.size(d));
    rows *= a.size(d);
  }
  for (const std::int64_t d : summed_a) order_a.push_back(d);
  for (const std::int64_t d : summed_b) order_b.push_back(d);
  for (const std::int64_t d : rest_b) {
    order_b.push_back(d);
    sizes.push_back(b.size(d));
    columns *= b.size(d);
  }
  return matmul(a.permute(order_a).reshape({rows, terms}), b.permute(order_b).reshape({terms, columns})).reshape(sizes);
}

Tensor kron(const Tensor& a, const Tensor& b) {
  LOCKSTEP_CHECK(a.defined() && b.defined(), "[kron] a tensor is undefined");
  const int dims = std::max(a.dim(), b.dim());
  LOCKSTEP_CHECK(2 * dims <= Shape::kMaxDims, "[kron] expected tensors of at most {} dimensions", Shape::kMaxDims / 2);
  Shape sizes, sizes_a, sizes_b;
  for (int d = 0; d < dims; ++d) {
    const std::int64_t size_a = d < dims - a.dim() ? 1 : a.sizes()[d - dims + a.dim()];
    const std::int64_t size_b = d < dims - b.dim() ? 1 : b.sizes()[d - dims + b.dim()];
    sizes.push_back(size_a * size_b);
    for (const std::int64_t size : {size_a, std::int64_t{1}}) sizes_a.push_back(size);
    for (const std::int64_t size : {std::int64_t{1}, size_b}) sizes_b.push_back(size);
  }
  return (a.reshape(sizes_a) * b.reshape(sizes_b)).reshape(sizes);
}

Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias) {
  LOCKSTEP_CHECK(a.defined() && b.defined() && weight.defined() && weight.dim() == 3 && a.dim() >= 1 &&
                     a.dim() == b.dim() && a.size(-1) == weight.size(1) && b.size(-1) == weight.size(2),
                 "[bilinear] expected a [*, i], b [*, j] and a weight [out, i, j]");
  if (autocast::is_active) [[unlikely]]
    return in_widest([](const auto&... t) { return bilinear(t...); }, a, b, weight, bias);
  const std::int64_t out = weight.size(0), i = weight.size(1), j = weight.size(2);
  // [*, i] x [i, out j] to [*, out, j], then the sum over j.
  const Tensor left = matmul(a, weight.permute({1, 0, 2}).reshape({i, out * j}));
  Shape sizes = left.sizes();
  sizes[sizes.dim() - 1] = out;
  sizes.push_back(j);
  const Tensor y = matmul(left.view(sizes), b.unsqueeze(-1)).squeeze(-1);
  return bias.defined() ? y + bias : y;
}

}  // namespace lockstep
