// Running extremes and running sums of exponentials.

#include <limits>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/gather/gather_kernels.h"
#include "lockstep/autograd/ops/gather/index_kernels.h"
#include "lockstep/autograd/ops/scan/scan.h"
#include "lockstep/autograd/ops/scan/scan_kernels.h"
#include "lockstep/autograd/ops/support/on_cpu.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<RunningExtremeKernel> cummax_kernel{"cummax", running_extreme_cpu};
constexpr KernelTable<RunningExtremeKernel> cummin_kernel{"cummin", running_extreme_cpu};
constexpr KernelTable<LogCumsumExpKernel> logcumsumexp_kernel{"logcumsumexp", logcumsumexp_cpu};

Shape three_dims(const Tensor& x, int dim) {
  return x.dim() == 0 ? Shape{1, 1, 1} : detail::around_dim(x.sizes(), dim);
}

TopK running_extreme(bool largest, const Tensor& x, std::int64_t dim, const char* op) {
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", op);
  const int d = wrap_dim(dim, x.dim(), op);
  if (is_elsewhere(x)) {
    const TopK found = running_extreme(largest, x.to(kCPU), dim, op);
    return {found.values.to(x.device()), found.indices.to(x.device())};
  }
  if (x.dim() == 0) {
    const TopK one = running_extreme(largest, x.view({1}), 0, op);
    return {one.values.view({}), one.indices.view({})};
  }
  const TopK out{empty(x.sizes(), options_of(x)), empty(x.sizes(), {.dtype = kInt64, .device = x.device()})};
  if (x.numel() > 0) {
    const Tensor from = as_contiguous(x.detach());
    const Shape around = three_dims(x, d);
    (largest ? cummax_kernel : cummin_kernel)(from)(largest, from.view(around), out.values.view(around),
                                                    out.indices.view(around));
  }
  detail::record_gather(out.values, x, d, out.indices);
  return out;
}

Tensor running_log_sums(const Tensor& values, int dim, bool reverse) {
  const Tensor x = as_contiguous(values.detach());
  const Tensor out = empty_like(x);
  const Shape around = three_dims(x, dim);
  if (x.numel() > 0) logcumsumexp_kernel(x)(x.view(around), out.view(around), reverse);
  return out;
}

/// d/dx_i = sum over j >= i of g_j exp(x_i - out_j), for positive and negative g_j apart, in logarithms.
class LogCumsumExpBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "LogCumsumExpBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor &x = saved(0), &out = saved(1), &grad = grads[0];
    constexpr double kNone = -std::numeric_limits<double>::infinity();
    const auto part = [&](const Tensor& amounts) {
      const Tensor some = amounts > 0.0;
      const Tensor logs = where(some, log(where(some, amounts, 1.0)), kNone);
      return exp(running_log_sums(logs - out, dim, true) + x);
    };
    return {part(grad) - part(-grad)};
  }
};

}  // namespace

TopK cummax(const Tensor& x, std::int64_t dim) {
  return running_extreme(true, x, dim, "cummax");
}
TopK cummin(const Tensor& x, std::int64_t dim) {
  return running_extreme(false, x, dim, "cummin");
}

Tensor logcumsumexp(const Tensor& x, std::int64_t dim) {
  LOCKSTEP_CHECK(x.defined(), "[logcumsumexp] the tensor is undefined");
  if (is_elsewhere(x)) return logcumsumexp(x.to(kCPU), dim).to(x.device());
  if (!x.is_floating_point()) return logcumsumexp(x.to(kFloat32), dim);
  const int d = wrap_dim(dim, x.dim(), "logcumsumexp");
  const Tensor out = running_log_sums(x, d, false);
  if (auto* node = record<LogCumsumExpBackward>(out, {&x})) {
    node->dim = d;
    node->save(x, out);
  }
  return out;
}

}  // namespace lockstep
