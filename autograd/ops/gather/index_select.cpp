#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

namespace detail {

namespace {

constexpr KernelTable<IndexSelectKernel> index_select_kernel{"index_select", index_select_cpu,
                                                             LOCKSTEP_CUDA_KERNEL(index_select_cuda)};
constexpr KernelTable<IndexAddKernel> index_add_kernel{"index_select backward", index_add_cpu,
                                                       LOCKSTEP_CUDA_KERNEL(index_add_cuda)};

}  // namespace

void index_select_values(const Tensor& x, const Tensor& index, const Tensor& out, const char* op) {
  index_select_kernel(x)(x, index, out, op);
}

void index_add_values(const Tensor& grad, const Tensor& index, const Tensor& out) {
  index_add_kernel(grad)(grad, index, out);
}

Tensor prepare_index(const Tensor& index, const Tensor& x, const char* op) {
  LOCKSTEP_CHECK(index.defined(), "[{}] the index tensor is undefined", op);
  LOCKSTEP_CHECK(index.dtype() == kInt64 || index.dtype() == kInt32,
                 "[{}] expected an int64 or int32 index, found {}; convert it with to(kInt64)", op,
                 name(index.dtype()));
  LOCKSTEP_CHECK(index.device() == x.device(), "[{}] the index is on {} and the tensor on {}; move one of them", op,
                 to_string(index.device()), to_string(x.device()));
  return as_contiguous(cast_values(index, kInt64));
}

Shape around_dim(const Shape& sizes, int dim) {
  Shape around{1, sizes[dim], 1};
  for (int d = 0; d < dim; ++d) around[0] *= sizes[d];
  for (int d = dim + 1; d < sizes.dim(); ++d) around[2] *= sizes[d];
  return around;
}

Tensor index_add_rows(const Tensor& grad, const Tensor& index, const Shape& sizes, int dim) {
  const DType compute = grad.dtype() == kFloat64 || grad.dtype() == kInt64 ? grad.dtype() : kFloat32;
  const Tensor out = zeros(sizes, {.dtype = compute, .device = grad.device()});
  if (grad.numel() > 0) {
    const Shape around = around_dim(sizes, dim);
    const Tensor dense = as_contiguous(cast_values(grad, compute));
    index_add_values(dense.view({around[0], index.numel(), around[2]}), index, out.view(around));
  }
  return cast_values(out, grad.dtype());
}

}  // namespace detail

namespace {

struct IndexSelectBackward final : Node {
  Shape sizes;
  int dim = 0;

  const char* name() const override { return "IndexSelectBackward"; }
  TensorList apply(TensorList grads) override { return {detail::index_add_rows(grads[0], saved(0), sizes, dim)}; }
  TensorList apply_recorded(TensorList grads) override {
    return {apply_linear(grads[0], {[rows = SavedTensor(saved(0)), sizes = sizes, dim = dim](const Tensor& grad) {
                                      return detail::index_add_rows(grad, rows.get("IndexSelectBackward"), sizes, dim);
                                    },
                                    [rows = SavedTensor(saved(0)), dim = dim](const Tensor& x) {
                                      return x.index_select(dim, rows.get("IndexSelectBackward"));
                                    }})};
  }
};

}  // namespace

Tensor Tensor::index_select(std::int64_t dim, const Tensor& index) const {
  if (this->dim() == 0 && index.defined()) {
    LOCKSTEP_CHECK(index.numel() == 1, "[index_select] expected one position for a scalar, found {}", index.numel());
    return view({1}).index_select(dim, index).view({});
  }
  const int d = wrap_dim(dim, this->dim(), "index_select");
  const Tensor positions = detail::prepare_index(index, *this, "index_select");
  LOCKSTEP_CHECK(positions.dim() <= 1, "[index_select] expected an index with one dimension, found shape {}",
                 to_string(positions.sizes()));
  Shape out_sizes = sizes();
  out_sizes[d] = positions.numel();
  const Tensor out = empty(out_sizes, options_of(*this));
  {
    NoGradGuard values_only;
    const Tensor x = as_contiguous(*this);
    detail::index_select_values(x.view(detail::around_dim(sizes(), d)), positions,
                                out.view(detail::around_dim(out_sizes, d)), "index_select");
  }
  if (auto* node = record<IndexSelectBackward>(out, {this})) {
    node->save(positions);
    node->sizes = sizes();
    node->dim = d;
  }
  return out;
}

Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index) {
  return x.index_select(dim, index);
}

}  // namespace lockstep
