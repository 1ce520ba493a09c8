#include <utility>
#include <vector>

#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"

namespace lockstep {

namespace {

struct PermuteBackward final : Node {
  Shape inverse;

  const char* name() const override { return "PermuteBackward"; }
  TensorList apply(TensorList grads) override { return {grads[0].permute(inverse)}; }
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }
};

/// `dims` is a permutation of 0 .. x.dim() - 1.
Tensor permuted(const Tensor& x, const Shape& dims) {
  Shape sizes = dims, strides = dims, inverse = dims;
  for (int i = 0; i < dims.dim(); ++i) {
    const int d = static_cast<int>(dims[i]);
    sizes[i] = x.sizes()[d];
    strides[i] = x.strides()[d];
    inverse[d] = i;
  }
  Tensor out = x.as_strided(sizes, strides, x.offset());
  note_view(out, x);
  if (auto* node = record<PermuteBackward>(out, {&x})) node->inverse = inverse;
  return out;
}

}  // namespace

Tensor Tensor::permute(const Shape& dims) const {
  LOCKSTEP_CHECK(dims.dim() == dim(), "[permute] {} dimensions given for a tensor of shape {}; name each one once",
                 dims.dim(), to_string(sizes()));
  Shape wrapped = dims;
  Shape seen = Shape::filled(dim(), 0);
  for (int i = 0; i < dim(); ++i) {
    const int d = wrap_dim(dims[i], dim(), "permute");
    LOCKSTEP_CHECK(seen[d]++ == 0, "[permute] dimension {} occurs twice in {}; name each one once", d, to_string(dims));
    wrapped[i] = d;
  }
  return permuted(*this, wrapped);
}

Tensor Tensor::transpose(std::int64_t dim0, std::int64_t dim1) const {
  const int a = wrap_dim(dim0, dim(), "transpose");
  const int b = wrap_dim(dim1, dim(), "transpose");
  Shape dims = Shape::filled(dim(), 0);
  for (int d = 0; d < dim(); ++d) dims[d] = d;
  if (a != b) std::swap(dims[a], dims[b]);
  return permuted(*this, dims);
}

Tensor Tensor::t() const {
  LOCKSTEP_CHECK(dim() <= 2, "[t] expected at most 2 dimensions, found shape {}; use transpose() or permute()",
                 to_string(sizes()));
  return dim() == 2 ? transpose(0, 1) : *this;
}

Tensor permute(const Tensor& x, const Shape& dims) {
  return x.permute(dims);
}
Tensor transpose(const Tensor& x, std::int64_t dim0, std::int64_t dim1) {
  return x.transpose(dim0, dim1);
}

Tensor movedim(const Tensor& x, std::int64_t from, std::int64_t to) {
  return movedim(x, Shape{from}, Shape{to});
}

Tensor movedim(const Tensor& x, const Shape& from, const Shape& to) {
  LOCKSTEP_CHECK(from.dim() == to.dim(), "[movedim] expected as many places as dimensions, found {} and {}",
                 to_string(from), to_string(to));
  Shape dims = Shape::filled(x.dim(), -1);  // of x, by their new places
  std::vector<bool> moved(static_cast<std::size_t>(x.dim()));
  for (int i = 0; i < from.dim(); ++i) {
    const int a = wrap_dim(from[i], x.dim(), "movedim"), b = wrap_dim(to[i], x.dim(), "movedim");
    if (x.dim() == 0) continue;
    LOCKSTEP_CHECK(!moved[static_cast<std::size_t>(a)] && dims[b] == -1,
                   "[movedim] a dimension or a place is there twice: {} to {}", to_string(from), to_string(to));
    moved[static_cast<std::size_t>(a)] = true;
    dims[b] = a;
  }
  int next = 0;
  for (int d = 0; d < x.dim(); ++d) {
    if (moved[static_cast<std::size_t>(d)]) continue;
    while (dims[next] != -1) ++next;
    dims[next] = d;
  }
  return x.permute(dims);
}

}  // namespace lockstep
