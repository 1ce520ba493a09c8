#include "autograd/ops/reduce/reduce.h"

#include "autograd/ops/reduce/reduce_dims.h"
#include "autograd/ops/reduce/reduce_kernels.h"
#include "autograd/record.h"
#include "core/check.h"
#include "core/factories.h"

namespace lockstep {
namespace {

constexpr KernelTable<ReduceKernel> reduce_kernel{"reduce", reduce_cpu};

Tensor run(ReduceOp op, const Tensor& x, const Tensor* about, double divisor, const ReduceDims& dims, DType dtype) {
  Tensor out = empty(dims.result_sizes, {.dtype = dtype, .device = x.device()});
  reduce_kernel(x)(op, x, about, divisor, dims.with_kept_dims(out));
  return out;
}

class SumBackward final : public Node {
 public:
  const char* name() const override { return "SumBackward"; }
  TensorList apply(TensorList grads) override { return {dims.spread(grads[0])}; }

  ReduceDims dims;
};

}  // namespace

void reduce_sum(const Tensor& x, const Tensor& out) {
  reduce_kernel(x)(ReduceOp::sum, x, nullptr, 1.0, out);
}

Tensor sum(const Tensor& x, const Shape& dims, bool keepdim) {
  const ReduceDims reduce(x, dims, keepdim, "sum");
  Tensor out = run(ReduceOp::sum, x, nullptr, 1.0, reduce, x.is_floating_point() ? x.dtype() : kInt64);
  if (auto* node = record<SumBackward>(out, {&x})) node->dims = reduce;
  return out;
}

Tensor Tensor::sum(const Shape& dims, bool keepdim) const {
  return lockstep::sum(*this, dims, keepdim);
}

}  // namespace lockstep
