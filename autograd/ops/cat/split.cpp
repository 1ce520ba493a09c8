#include <algorithm>

#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {

namespace {

/// One node for all parts, so that the gradient of x is put together in one piece.
struct SplitBackward final : Node {
  Shape sizes;
  std::vector<std::int64_t> lengths;
  int dim = 0;
  TensorOptions options;

  const char* name() const override { return "SplitBackward"; }
  TensorList apply(TensorList grads) override {
    if (const Tensor joined = neighbours(grads); joined.defined()) return {joined};
    const Tensor full = empty(sizes, options);
    std::int64_t start = 0;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      const Tensor part = full.narrow(dim, start, lengths[i]);
      if (grads[i].defined())
        copy_values(grads[i], part);
      else
        fill_values(part, 0.0);
      start += lengths[i];
    }
    return {full};
  }
  TensorList apply_recorded(TensorList grads) override {
    std::vector<Tensor> parts;
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      Shape part = sizes;
      part[dim] = lengths[i];
      parts.push_back(grads[i].defined() ? grads[i] : zeros(part, options));
    }
    return {cat(parts, dim)};
  }

 private:
  /// The gradients as one tensor, if they lie beside each other in memory as in a contiguous one; else undefined.
  Tensor neighbours(const TensorList& grads) const {
    const Shape strides = contiguous_strides(sizes);
    for (std::size_t i = 0; i < lengths.size(); ++i) {
      if (!grads[i].defined() || grads[i].numel() == 0 || grads[i].strides() != strides ||
          grads[i].storage() != grads[0].storage())
        return {};
      if (i > 0 && grads[i].offset() != grads[i - 1].offset() + lengths[i - 1] * strides[dim]) return {};
    }
    return grads[0].as_strided(sizes, strides, grads[0].offset());
  }
};

std::vector<Tensor> split_at(const Tensor& x, std::vector<std::int64_t> lengths, int d) {
  std::vector<Tensor> parts;
  std::int64_t offset = x.offset();
  for (std::int64_t length : lengths) {
    Shape sizes = x.sizes();
    sizes[d] = length;
    parts.push_back(x.as_strided(sizes, x.strides(), sizes.numel() == 0 ? x.offset() : offset));
    note_view(parts.back(), x);
    offset += length * x.strides()[d];
  }
  std::vector<const Tensor*> outputs;
  for (const Tensor& part : parts) outputs.push_back(&part);
  const Tensor* inputs[] = {&x};
  if (auto* node = record_many<SplitBackward>(outputs, inputs)) {
    node->sizes = x.sizes();
    node->lengths = std::move(lengths);
    node->dim = d;
    node->options = options_of(x);
  }
  return parts;
}

int split_dim(const Tensor& x, std::int64_t dim, const char* op) {
  LOCKSTEP_CHECK(x.dim() > 0, "[{}] expected a tensor with at least one dimension, found a scalar", op);
  return wrap_dim(dim, x.dim(), op);
}

/// Parts without elements are tensors all the same.
void check_empty_parts(std::int64_t count, const char* op) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  LOCKSTEP_CHECK(count <= kMost, "[{}] expected at most {} parts without elements, found {}", op, kMost, count);
}

/// Parts of `size` elements, the last one smaller; one empty part for an empty dimension.
std::vector<Tensor> split_every(const Tensor& x, std::int64_t size, int d) {
  std::vector<std::int64_t> lengths;
  std::int64_t left = x.sizes()[d];
  do {
    lengths.push_back(std::min(size, left));
    left -= lengths.back();
  } while (left > 0);
  return split_at(x, std::move(lengths), d);
}

}  // namespace

std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim) {
  const int d = split_dim(x, dim, "split");
  LOCKSTEP_CHECK(size >= 1, "[split] expected a size of at least 1, found {}", size);
  return split_every(x, size, d);
}

std::vector<Tensor> split_with_sizes(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim) {
  const int d = split_dim(x, dim, "split_with_sizes");
  std::int64_t left = x.sizes()[d];
  for (std::int64_t size : sizes) {
    LOCKSTEP_CHECK(size >= 0 && size <= left,
                   "[split_with_sizes] size {} does not fit: {} of {} elements are left in dimension {}", size, left,
                   x.sizes()[d], d);
    left -= size;
  }
  LOCKSTEP_CHECK(left == 0,
                 "[split_with_sizes] the sizes leave {} of {} elements of dimension {} over; they must add up", left,
                 x.sizes()[d], d);
  return split_at(x, sizes, d);
}

std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim) {
  const int d = split_dim(x, dim, "chunk");
  LOCKSTEP_CHECK(chunks >= 1, "[chunk] expected at least 1 chunk, found {}", chunks);
  const std::int64_t size = x.sizes()[d];
  if (size > 0) return split_every(x, size / chunks + (size % chunks != 0 ? 1 : 0), d);
  check_empty_parts(chunks, "chunk");
  return split_at(x, std::vector<std::int64_t>(static_cast<std::size_t>(chunks), 0), d);
}

std::vector<Tensor> tensor_split(const Tensor& x, std::int64_t sections, std::int64_t dim) {
  const int d = split_dim(x, dim, "tensor_split");
  LOCKSTEP_CHECK(sections >= 1, "[tensor_split] expected at least 1 section, found {}", sections);
  check_empty_parts(sections - x.sizes()[d], "tensor_split");
  const std::int64_t size = x.sizes()[d] / sections, larger = x.sizes()[d] % sections;
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < sections; ++i) lengths.push_back(size + (i < larger ? 1 : 0));
  return split_at(x, std::move(lengths), d);
}

std::vector<Tensor> tensor_split(const Tensor& x, const std::vector<std::int64_t>& indices, std::int64_t dim) {
  const int d = split_dim(x, dim, "tensor_split");
  std::vector<Tensor> parts;
  std::int64_t begin = 0;
  for (const std::int64_t index : indices) {
    parts.push_back(x.slice(d, begin, index));
    begin = index;
  }
  parts.push_back(x.slice(d, begin, x.sizes()[d]));
  return parts;
}

std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim) {
  const int d = split_dim(x, dim, "unbind");
  if (x.sizes()[d] == 0) return {};
  std::vector<Tensor> parts = split_every(x, 1, d);
  for (Tensor& part : parts) part = part.squeeze(d);
  return parts;
}

}  // namespace lockstep
