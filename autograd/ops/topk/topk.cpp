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

constexpr KernelTable<detail::PlaceInOrderKernel> place_in_order_kernel{"kthvalue", detail::place_in_order_cpu};

}  // namespace

Tensor detail::place_in_order(const Tensor& x, std::int64_t k, int dim, bool or_nan) {
  const NoGradGuard values_only;
  if (x.device().is_cuda()) {
    const Tensor order = argsort(x, dim), at = order.narrow(dim, k, 1);
    if (!or_nan) return at.contiguous();
    // A NaN counts as the largest value: where the last is one, it is the one that is asked for.
    const Tensor last = order.narrow(dim, x.size(dim) - 1, 1);
    return where(isnan(gather(x.detach(), dim, last)), last, at);
  }
  const Tensor turned = as_contiguous((x.dtype() == kBool ? x.to(kUInt8) : x.detach()).transpose(dim, -1));
  Shape sizes = turned.sizes();
  const std::int64_t length = sizes.back();
  sizes[sizes.dim() - 1] = 1;
  const Tensor places = empty(sizes, {.dtype = kInt64, .device = x.device()});
  if (places.numel() > 0)
    place_in_order_kernel(x)(turned.view({places.numel(), length}), k, or_nan, places.view({places.numel()}));
  return as_contiguous(places.transpose(dim, -1));
}

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
  const int d = wrap_dim(dim, x.dim(), "median");
  LOCKSTEP_CHECK(x.size(d) > 0, "[median] expected elements along dimension {}, found sizes {}", dim,
                 to_string(x.sizes()));
  const Tensor place = detail::place_in_order(x, (x.size(d) - 1) / 2, d, true), value = gather(x, d, place);
  return keepdim ? TopK{value, place} : TopK{value.squeeze(d), place.squeeze(d)};
}

Tensor median(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined(), "[median] the tensor is undefined");
  if (x.numel() == 0 && x.is_floating_point())
    return sum(x) + std::numeric_limits<double>::quiet_NaN();  // as in PyTorch, with a gradient of no elements
  return median(x.flatten(), 0).values;
}

}  // namespace lockstep
