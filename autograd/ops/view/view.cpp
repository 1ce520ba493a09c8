#include "lockstep/autograd/ops/view/view.h"

#include <optional>
#include <utility>

#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"

namespace lockstep {

namespace {

/// The strides with which memory laid out as (sizes, strides) reads as `new_sizes`, which must have as many elements;
/// nothing if no strides do.
std::optional<Shape> view_strides(const Shape& sizes, const Shape& strides, const Shape& new_sizes) {
  if (sizes.numel() == 0) return contiguous_strides(new_sizes);
  Shape out = Shape::filled(new_sizes.dim(), 1);
  int n = new_sizes.dim() - 1;
  std::int64_t step = 1;
  // From the last dimension on: find the longest run of old dimensions that one stride walks through, then cut that run
  // into new dimensions. Dimensions of size 1 take part in no run.
  for (int o = sizes.dim() - 1; o >= 0;) {
    if (sizes[o] == 1) {
      --o;
      continue;
    }
    step = strides[o];
    std::int64_t left = sizes[o];
    for (--o; o >= 0 && (sizes[o] == 1 || strides[o] == step * left); --o) left *= sizes[o];
    for (; n >= 0 && (left > 1 || new_sizes[n] == 1); --n) {
      if (left % new_sizes[n] != 0) return std::nullopt;
      out[n] = step;
      step *= new_sizes[n];
      left /= new_sizes[n];
    }
  }
  for (; n >= 0; --n) out[n] = step;
  return out;
}

struct ViewBackward final : Node {
  Shape sizes;

  const char* name() const override { return "ViewBackward"; }
  TensorList apply(TensorList grads) override { return {grads[0].reshape(sizes)}; }
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }
};

/// Replaces -1 and checks the number of elements.
Shape complete_sizes(const Shape& sizes, const Tensor& x, const char* op) {
  Shape out = sizes;
  int unknown = -1;
  std::int64_t known = 1;
  for (int d = 0; d < out.dim(); ++d) {
    LOCKSTEP_CHECK(out[d] >= -1, "[{}] size {} of {} is negative; only -1 (compute it) may be", op, out[d],
                   to_string(sizes));
    if (out[d] != -1) {
      LOCKSTEP_CHECK(!__builtin_mul_overflow(known, out[d], &known), "[{}] {} has too many elements", op,
                     to_string(sizes));
      continue;
    }
    LOCKSTEP_CHECK(unknown < 0, "[{}] only one size of {} may be -1", op, to_string(sizes));
    unknown = d;
  }
  if (unknown >= 0) {
    LOCKSTEP_CHECK(known != 0 && x.numel() % known == 0,
                   "[{}] cannot compute the -1 in {}: {} elements of shape {} do not divide by {}", op,
                   to_string(sizes), x.numel(), to_string(x.sizes()), known);
    out[unknown] = x.numel() / known;
    known *= out[unknown];
  }
  LOCKSTEP_CHECK(known == x.numel(), "[{}] shape {} has {} elements and cannot become {} with {}", op,
                 to_string(x.sizes()), x.numel(), to_string(sizes), known);
  return out;
}

Tensor recorded(Tensor out, const Tensor& x) {
  if (auto* node = record<ViewBackward>(out, {&x})) node->sizes = x.sizes();
  return out;
}
Tensor viewed(Tensor out, const Tensor& x) {
  note_view(out, x);
  return recorded(std::move(out), x);
}

}  // namespace

Tensor Tensor::view(const Shape& sizes) const {
  const Shape full = complete_sizes(sizes, *this, "view");
  const auto strides = view_strides(this->sizes(), this->strides(), full);
  LOCKSTEP_CHECK(strides.has_value(),
                 "[view] shape {} with strides {} cannot be viewed as {} without a copy; use reshape()",
                 to_string(this->sizes()), to_string(this->strides()), to_string(full));
  return viewed(as_strided(full, *strides, offset()), *this);
}

Tensor Tensor::reshape(const Shape& sizes) const {
  const Shape full = complete_sizes(sizes, *this, "reshape");
  if (const auto strides = view_strides(this->sizes(), this->strides(), full))
    return viewed(as_strided(full, *strides, offset()), *this);
  const Tensor copy = copy_contiguous(*this);
  Tensor out = copy.as_strided(full, contiguous_strides(full), copy.offset());
  return recorded(std::move(out), *this);
}

Tensor Tensor::flatten(std::int64_t start_dim, std::int64_t end_dim) const {
  const int first = wrap_dim(start_dim, dim(), "flatten");
  const int last = wrap_dim(end_dim, dim(), "flatten");
  LOCKSTEP_CHECK(first <= last, "[flatten] start_dim {} comes after end_dim {} for shape {}", start_dim, end_dim,
                 to_string(sizes()));
  if (dim() == 0) return reshape({1});
  if (first == last) return *this;
  Shape merged;
  for (int d = 0; d <= first; ++d) merged.push_back(sizes()[d]);
  for (int d = first + 1; d <= last; ++d) merged[first] *= sizes()[d];
  for (int d = last + 1; d < dim(); ++d) merged.push_back(sizes()[d]);
  return reshape(merged);
}

Tensor reshape(const Tensor& x, const Shape& sizes) {
  return x.reshape(sizes);
}
Tensor flatten(const Tensor& x, std::int64_t start_dim, std::int64_t end_dim) {
  return x.flatten(start_dim, end_dim);
}

Tensor unflatten(const Tensor& x, std::int64_t dim, const Shape& sizes) {
  LOCKSTEP_CHECK(x.dim() > 0 && !sizes.empty(), "[unflatten] expected a dimension and sizes to cut it into");
  const int d = wrap_dim(dim, x.dim(), "unflatten");
  std::int64_t known = 1;
  int open = 0;
  for (const std::int64_t size : sizes) size == -1 ? void(++open) : void(known *= size);
  LOCKSTEP_CHECK(open <= 1 && (open == 0 ? known == x.sizes()[d] : known > 0 && x.sizes()[d] % known == 0),
                 "[unflatten] dimension {} of {} cannot be cut into {}", d, to_string(x.sizes()), to_string(sizes));
  Shape full;
  for (int i = 0; i < x.dim(); ++i) {
    if (i != d) {
      full.push_back(x.sizes()[i]);
      continue;
    }
    for (const std::int64_t size : sizes) full.push_back(size == -1 ? x.sizes()[d] / known : size);
  }
  return x.view(full);
}

}  // namespace lockstep
