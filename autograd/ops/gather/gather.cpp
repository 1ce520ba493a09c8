#include "lockstep/autograd/ops/gather/gather.h"

#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/gather/gather_kernels.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {

Tensor detail::index_of_slices(const Tensor& index, int dim, const Shape& sizes) {
  if (index.dim() != sizes.dim() || index.numel() == 0 || sizes.dim() < 2) return {};
  for (int d = 0; d < sizes.dim(); ++d)
    if (d != dim && (index.sizes()[d] != sizes[d] || (sizes[d] > 1 && index.strides()[d] != 0))) return {};
  return index.as_strided({index.sizes()[dim]}, {index.strides()[dim]}, index.offset());
}

Tensor detail::prepare_positions(const Tensor& index, const Tensor& x, int dim, const char* op) {
  LOCKSTEP_CHECK(index.defined(), "[{}] the index tensor is undefined", op);
  Tensor once = index;  // what an expanded index says again and again
  for (int d = 0; d < index.dim(); ++d)
    if (index.strides()[d] == 0 && index.sizes()[d] > 1) once = once.narrow(d, 0, 1);
  once = prepare_index(once, x, op);
  if (x.device().is_cpu()) check_index_range(once.data<std::int64_t>(), once.numel(), x.sizes()[dim], op);
  const Tensor positions = once.expand(index.sizes());
  return x.device().is_cpu() || index_of_slices(positions, dim, x.sizes()).defined() ? positions
                                                                                     : as_contiguous(positions);
}

namespace {

constexpr KernelTable<detail::GatherKernel> gather_kernel{"gather", detail::gather_cpu,
                                                          LOCKSTEP_CUDA_KERNEL(detail::gather_cuda)};
constexpr KernelTable<detail::GatherBackwardKernel> gather_backward_kernel{
    "gather backward", detail::gather_backward_cpu, LOCKSTEP_CUDA_KERNEL(detail::gather_backward_cuda)};

struct GatherBackward final : Node {
  Shape sizes;
  int dim = 0;

  const char* name() const override { return "GatherBackward"; }
  TensorList apply(TensorList grads) override { return {spread(grads[0], saved(0), dim, sizes)}; }
  TensorList apply_recorded(TensorList grads) override {
    return {apply_linear(grads[0], {[index = SavedTensor(saved(0)), dim = dim, sizes = sizes](const Tensor& grad) {
                                      return spread(grad, index.get("GatherBackward"), dim, sizes);
                                    },
                                    [index = SavedTensor(saved(0)), dim = dim](const Tensor& x) {
                                      return x.gather(dim, index.get("GatherBackward"));
                                    }})};
  }

 private:
  static Tensor spread(const Tensor& grad, const Tensor& index, int dim, const Shape& sizes) {
    const DType compute = grad.dtype() == kFloat64 ? kFloat64 : kFloat32;
    const Tensor out = zeros(sizes, {.dtype = compute, .device = grad.device()});
    const Tensor dense = as_contiguous(cast_values(grad, compute));
    if (dense.numel() > 0) gather_backward_kernel(dense)(dense, dim, index, out);
    return cast_values(out, grad.dtype());
  }
};

// Of no elements there may be any number of dimensions.
Tensor nothing_gathered(const Tensor& x, const Tensor& index) {
  const Tensor out = empty(index.sizes(), options_of(x));
  detail::record_gather(out, x, 0, detail::prepare_index(cast_values(index, kInt64), x, "gather"));
  return out;
}

}  // namespace

void detail::record_gather(const Tensor& out, const Tensor& x, int dim, const Tensor& index) {
  if (auto* node = record<GatherBackward>(out, {&x})) {
    node->save(index);
    node->sizes = x.sizes();
    node->dim = dim;
  }
}

Tensor Tensor::gather(std::int64_t dim, const Tensor& index) const {
  if (this->dim() + (index.defined() ? index.dim() : 1) < 2 && index.defined()) {  // a scalar counts as one element
    wrap_dim(dim, 1, "gather");
    return view({numel()}).gather(0, as_contiguous(index).view({index.numel()})).view(index.sizes());
  }
  const int d = wrap_dim(dim, this->dim(), "gather");
  if (index.defined() && index.numel() == 0) return nothing_gathered(*this, index);
  const bool bytes = index.defined() && index.dtype() == kUInt8;
  const Tensor positions = detail::prepare_positions(bytes ? cast_values(index, kInt64) : index, *this, d, "gather");
  if (const Tensor slices = detail::index_of_slices(positions, d, sizes()); slices.defined())
    return index_select(d, slices);
  LOCKSTEP_CHECK(positions.dim() == this->dim(), "[gather] index shape {} and tensor shape {} differ in dimensions",
                 to_string(positions.sizes()), to_string(sizes()));
  for (int i = 0; i < this->dim(); ++i)
    LOCKSTEP_CHECK(i == d || positions.sizes()[i] <= sizes()[i],
                   "[gather] index shape {} is larger than tensor shape {} at dimension {}; only dimension {} may be",
                   to_string(positions.sizes()), to_string(sizes()), i, d);
  const Tensor out = empty(positions.sizes(), options_of(*this));
  if (out.numel() > 0) gather_kernel (*this)(*this, d, positions, out);
  detail::record_gather(out, *this, d, positions);
  return out;
}

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  return x.gather(dim, index);
}

}  // namespace lockstep
