#include "lockstep/autograd/ops/topk/topk.h"

#include <limits>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/topk/topk_kernels.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<detail::TopKKernel> topk_kernel{"topk", detail::topk_cpu,
                                                      LOCKSTEP_CUDA_KERNEL(detail::topk_cuda)};

}  // namespace

TopK topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest) {
  LOCKSTEP_CHECK(x.defined() && x.dtype() != kBool, "[topk] expected a tensor of a dtype other than bool");
  if (x.dim() == 0) {
    LOCKSTEP_CHECK(k == 1 || k == 0, "[topk] expected k of at most 1 for a scalar, found {}", k);
    const TopK one = topk(x.view({1}), k, 0, largest);
    return k == 0 ? one : TopK{one.values.view({}), one.indices.view({})};
  }
  const int d = wrap_dim(dim, x.dim(), "topk");
  LOCKSTEP_CHECK(k >= 0 && k <= x.size(d), "[topk] expected k between 0 and {}, the size of dimension {}, found {}",
                 x.size(d), d, k);
  Tensor indices;
  {
    const NoGradGuard values_only;
    const Tensor rows = as_contiguous(x.detach().transpose(d, -1));
    Shape sizes = rows.sizes();
    sizes[sizes.dim() - 1] = k;
    const Tensor found = empty(sizes, {.dtype = kInt64, .device = x.device()});
    if (found.numel() > 0)
      topk_kernel(x)(rows.view({rows.numel() / rows.size(-1), rows.size(-1)}), found.view({found.numel() / k, k}),
                     largest);
    indices = as_contiguous(found.transpose(d, -1));
  }
  return {gather(x, d, indices), indices};
}

TopK sort(const Tensor& x, std::int64_t dim, bool descending) {
  LOCKSTEP_CHECK(x.defined(), "[sort] the tensor is undefined");
  if (x.dtype() == kBool) {
    const TopK sorted = sort(x.to(kUInt8), dim, descending);
    return {sorted.values.to(kBool), sorted.indices};
  }
  const std::int64_t length = x.dim() == 0 ? 1 : x.size(wrap_dim(dim, x.dim(), "sort"));
  return topk(x, length, dim, descending);
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  const NoGradGuard values_only;
  return sort(x, dim, descending).indices;
}

TopK median(const Tensor& x, std::int64_t dim, bool keepdim) {
  LOCKSTEP_CHECK(x.defined(), "[median] the tensor is undefined");
  if (x.dim() == 0) return median(x.unsqueeze(0), 0, false);
  LOCKSTEP_CHECK(x.size(dim) > 0, "[median] expected elements along dimension {}, found sizes {}", dim,
                 to_string(x.sizes()));
  if (x.numel() == 0) {
    const Tensor value = keepdim ? x.narrow(dim, 0, 1) : x.select(dim, 0);
    return {value.clone(), zeros(value.sizes(), {.dtype = kInt64, .device = x.device()})};
  }
  const Tensor order = argsort(x, dim);
  const std::int64_t length = x.size(dim);
  // A NaN counts as the largest value: where the last is one, it is the median.
  const Tensor middle = order.narrow(dim, (length - 1) / 2, 1), last = order.narrow(dim, length - 1, 1);
  const Tensor place = where(isnan(gather(x.detach(), dim, last)), last, middle);
  const Tensor value = gather(x, dim, place);
  return keepdim ? TopK{value, place} : TopK{value.squeeze(dim), place.squeeze(dim)};
}

Tensor median(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[median] the tensor is undefined");
  if (x.numel() == 0 && x.is_floating_point())
    return sum(x) + std::numeric_limits<double>::quiet_NaN();  // as in PyTorch, with a gradient of no elements
  return median(x.flatten(), 0).values;
}

}  // namespace lockstep
