#include "lockstep/autograd/ops/cat/cat.h"

#include <algorithm>

#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {

namespace {

struct CatBackward final : Node {
  struct Part {
    std::int64_t length = 0;  ///< along dim; -1 for a skipped tensor
    DType dtype = kFloat32;
  };
  std::vector<Part> parts;
  int dim = 0;

  const char* name() const override { return "CatBackward"; }
  TensorList apply(TensorList grads) override {
    TensorList result(parts.size());
    std::int64_t start = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const Part& part = parts[i];
      const bool skipped = part.length < 0;
      if (needs_grad(i) && skipped) result[i] = zeros({0}, {.dtype = part.dtype, .device = grads[0].device()});
      if (needs_grad(i) && !skipped) result[i] = cast_values(grads[0].narrow(dim, start, part.length), part.dtype);
      if (!skipped) start += part.length;
    }
    return result;
  }
  TensorList apply_recorded(TensorList grads) override {
    TensorList result(parts.size());
    std::int64_t start = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto& [length, dtype] = parts[i];
      if (needs_grad(i) && length < 0) result[i] = zeros({0}, {.dtype = dtype, .device = grads[0].device()});
      if (length < 0) continue;
      if (needs_grad(i)) result[i] = grads[0].narrow(dim, start, length).to(dtype);
      start += length;
    }
    return result;
  }
};

bool is_skipped(const Tensor& tensor) {
  return tensor.dim() == 1 && tensor.numel() == 0;
}

}  // namespace

Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "[cat] expected at least one tensor, found none");
  for (std::size_t i = 0; i < tensors.size(); ++i)
    LOCKSTEP_CHECK(tensors[i].defined(), "[cat] tensor {} is undefined", i);
  const auto first = std::find_if_not(tensors.begin(), tensors.end(), is_skipped);
  const Tensor& like = first == tensors.end() ? tensors[0] : *first;
  LOCKSTEP_CHECK(like.dim() > 0, "[cat] tensors without dimensions cannot be joined; use stack()");
  const int d = wrap_dim(dim, like.dim(), "cat");

  Shape sizes = like.sizes();
  sizes[d] = 0;
  DType dtype = tensors[0].dtype();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    LOCKSTEP_CHECK(tensor.device() == like.device(), "[cat] tensor {} is on {}, others on {}; move them together", i,
                   to_string(tensor.device()), to_string(like.device()));
    dtype = promote_types(dtype, tensor.dtype());
    if (is_skipped(tensor)) continue;
    Shape resized = tensor.sizes();
    if (resized.dim() == sizes.dim()) resized[d] = sizes[d];
    LOCKSTEP_CHECK(resized == sizes, "[cat] tensor {} has shape {}, which does not fit {} in all dimensions but {}", i,
                   to_string(tensor.sizes()), to_string(like.sizes()), d);
    sizes[d] += tensor.sizes()[d];
  }

  const Tensor out = empty(sizes, {.dtype = dtype, .device = like.device()});
  std::int64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    copy_values(tensor, out.as_strided(tensor.sizes(), out.strides(), offset));
    offset += tensor.sizes()[d] * out.strides()[d];
  }

  std::vector<const Tensor*> inputs;
  for (const Tensor& tensor : tensors) inputs.push_back(&tensor);
  const Tensor* outputs[] = {&out};
  if (auto* node = record_many<CatBackward>(outputs, inputs)) {
    for (const Tensor& tensor : tensors)
      node->parts.push_back({is_skipped(tensor) ? -1 : tensor.sizes()[d], tensor.dtype()});
    node->dim = d;
  }
  return out;
}

Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim) {
  LOCKSTEP_CHECK(!tensors.empty(), "[stack] expected at least one tensor, found none");
  std::vector<Tensor> widened;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    LOCKSTEP_CHECK(tensors[i].defined(), "[stack] tensor {} is undefined", i);
    LOCKSTEP_CHECK(tensors[i].sizes() == tensors[0].sizes(), "[stack] tensor {} has shape {}, expected {} as the first",
                   i, to_string(tensors[i].sizes()), to_string(tensors[0].sizes()));
    widened.push_back(tensors[i].unsqueeze(wrap_dim(dim, tensors[i].dim() + 1, "stack")));
  }
  return cat(widened, dim);
}

}  // namespace lockstep
