#include <utility>

#include "lockstep/autograd/ops/gather/gather.h"
#include "lockstep/autograd/ops/pool2d/pool2d.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

/// Each element takes the gradient of its position, of several at one position too, as in PyTorch.
class MaxUnpoolBackward final : public Node {
 public:
  const char* name() const override { return "MaxUnpoolBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& indices = saved(0);
    return {grads[0].flatten(-2).gather(-1, indices.flatten(-2)).view(indices.sizes())};
  }
  TensorList apply_recorded(TensorList grads) override { return apply(std::move(grads)); }
};

}  // namespace

Tensor max_unpool2d(const Tensor& x, const Tensor& indices, Size2d kernel, const MaxUnpool2dOptions& options) {
  LOCKSTEP_CHECK(x.defined() && (x.dim() == 3 || x.dim() == 4),
                 "[max_unpool2d] expected x [n, c, h, w] or [c, h, w], found {}",
                 x.defined() ? to_string(x.sizes()) : "an undefined tensor");
  LOCKSTEP_CHECK(indices.defined() && indices.dtype() == kInt64 && indices.sizes() == x.sizes(),
                 "[max_unpool2d] expected int64 indices of x's sizes {}, found {}", to_string(x.sizes()),
                 indices.defined() ? to_string(indices.sizes()) : "an undefined tensor");
  const Size2d stride = options.stride == Size2d(0) ? kernel : options.stride;
  Size2d size = options.output_size;
  if (size == Size2d(0))
    size = {(x.size(-2) - 1) * stride.h - 2 * options.padding.h + kernel.h,
            (x.size(-1) - 1) * stride.w - 2 * options.padding.w + kernel.w};
  LOCKSTEP_CHECK(size.h > 0 && size.w > 0, "[max_unpool2d] expected an image with elements, found {}x{}", size.h,
                 size.w);
  Shape planes = x.sizes(), sizes = x.sizes();
  planes.erase(x.dim() - 1);
  planes[x.dim() - 2] = size.h * size.w;
  sizes[x.dim() - 2] = size.h;
  sizes[x.dim() - 1] = size.w;
  Tensor out;
  {
    const NoGradGuard values_only;
    out = scatter(zeros(planes, options_of(x)), -1, indices.flatten(-2), x.detach().flatten(-2));
    out = out.as_strided(sizes, contiguous_strides(sizes), out.offset());
  }
  if (auto* node = record<MaxUnpoolBackward>(out, {&x})) node->save(indices);
  return out;
}

}  // namespace lockstep
