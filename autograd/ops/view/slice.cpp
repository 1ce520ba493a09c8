#include <algorithm>

#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/part.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"

namespace lockstep {

namespace {

/// Elements start, start + step, ... (length of them) along dim d; without the dimension if `drop`.
Tensor part(const Tensor& x, int d, std::int64_t start, std::int64_t length, std::int64_t step, bool drop) {
  auto cut = [&](Shape sizes, Shape strides, std::int64_t& offset) {
    if (length > 0) offset += start * strides[d];
    sizes[d] = length;
    strides[d] *= step;
    if (drop) {
      sizes.erase(d);
      strides.erase(d);
    }
    return std::pair(sizes, strides);
  };
  std::int64_t offset = x.offset();
  const auto [sizes, strides] = cut(x.sizes(), x.strides(), offset);
  Tensor out = x.as_strided(sizes, strides, offset);
  note_view(out, x);
  if (auto* node = record<SliceBackward>(out, {&x})) {
    node->sizes = x.sizes();
    std::tie(node->part_sizes, node->part_strides) = cut(x.sizes(), contiguous_strides(x.sizes()), node->part_offset);
  }
  return out;
}

int checked_dim(const Tensor& x, std::int64_t dim, const char* op) {
  LOCKSTEP_CHECK(x.dim() > 0, "[{}] a tensor without dimensions has no part; expected at least one dimension", op);
  return wrap_dim(dim, x.dim(), op);
}

}  // namespace

Tensor Tensor::slice(std::int64_t dim, std::int64_t start, std::int64_t end, std::int64_t step) const {
  const int d = checked_dim(*this, dim, "slice");
  LOCKSTEP_CHECK(step >= 1, "[slice] step must be at least 1, found {}", step);
  const std::int64_t size = sizes()[d];
  auto bound = [size](std::int64_t i) { return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size); };
  const std::int64_t first = bound(start);
  const std::int64_t span = std::max<std::int64_t>(bound(end) - first, 0);
  // A step beyond the end takes one element, whatever its size; capping it keeps the strides small.
  const std::int64_t capped = std::min(step, std::max<std::int64_t>(size, 1));
  return part(*this, d, first, (span + capped - 1) / capped, capped, false);
}

Tensor Tensor::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const {
  const int d = checked_dim(*this, dim, "narrow");
  const std::int64_t size = sizes()[d];
  const std::int64_t first = start < 0 ? start + size : start;
  LOCKSTEP_CHECK(length >= 0 && first >= 0 && first <= size && length <= size - first,
                 "[narrow] start {} and length {} do not lie in dimension {} of size {} (shape {})", start, length, d,
                 size, to_string(sizes()));
  return part(*this, d, first, length, 1, false);
}

Tensor Tensor::select(std::int64_t dim, std::int64_t index) const {
  const int d = checked_dim(*this, dim, "select");
  const std::int64_t size = sizes()[d];
  LOCKSTEP_CHECK(index >= -size && index < size,
                 "[select] index {} is out of range for dimension {} of shape {}; expected {} to {}", index, d,
                 to_string(sizes()), -size, size - 1);
  return part(*this, d, index < 0 ? index + size : index, 1, 1, true);
}

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  return x.narrow(dim, start, length);
}
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  return x.select(dim, index);
}

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim0, std::int64_t dim1) {
  LOCKSTEP_CHECK(x.dim() >= 2, "[diagonal] expected a tensor of at least two dimensions, found {}",
                 to_string(x.sizes()));
  const int a = wrap_dim(dim0, x.dim(), "diagonal"), b = wrap_dim(dim1, x.dim(), "diagonal");
  LOCKSTEP_CHECK(a != b, "[diagonal] expected two dimensions, found {} twice", a);
  const std::int64_t row = std::max<std::int64_t>(0, -offset), column = std::max<std::int64_t>(0, offset);
  const std::int64_t length = std::max<std::int64_t>(0, std::min(x.sizes()[a] - row, x.sizes()[b] - column));
  auto along = [&](Shape sizes, Shape strides, std::int64_t& at) {
    if (length > 0) at += row * strides[a] + column * strides[b];
    const std::int64_t step = strides[a] + strides[b];
    for (const int d : {std::max(a, b), std::min(a, b)}) {
      sizes.erase(d);
      strides.erase(d);
    }
    sizes.push_back(length);
    strides.push_back(step);
    return std::pair(sizes, strides);
  };
  std::int64_t at = x.offset();
  const auto [sizes, strides] = along(x.sizes(), x.strides(), at);
  Tensor out = x.as_strided(sizes, strides, at);
  note_view(out, x);
  if (auto* node = record<SliceBackward>(out, {&x})) {
    node->sizes = x.sizes();
    std::tie(node->part_sizes, node->part_strides) = along(x.sizes(), contiguous_strides(x.sizes()), node->part_offset);
  }
  return out;
}

}  // namespace lockstep
