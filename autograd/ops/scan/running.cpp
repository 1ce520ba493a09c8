// Running extremes and running sums of exponentials.

#include <limits>

#include "lockstep/autograd/grad_mode.h"
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

/// The sums over j >= i (not `from_end`: j <= i) of g_j exp(x_i - y_j), for positive and negative g_j apart, in
/// logarithms.
Tensor weighted_sums(const Tensor& g, const Tensor& x, const Tensor& y, int dim, bool from_end) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const NoGradGuard values_only;
  const auto part = [&](const Tensor& amounts) {
    const Tensor some = amounts > 0.0;
    const Tensor logs = where(some, log(where(some, amounts, 1.0)), kNone);
    return exp(running_log_sums(logs - y, dim, from_end) + x);
  };
  return part(g) - part(-g);
}

Tensor recorded_sums(const Tensor& g, const Tensor& x, const Tensor& y, int dim, bool from_end);

/// Of weighted_sums() w(g, x, y): linear in g, with h_j going to the sums of h_i exp(x_i - y_j), and exponential in x
/// and -y.
class WeightedSumsBackward final : public Node {
 public:
  int dim = 0;
  bool from_end = true;
  const char* name() const override { return "LogCumsumExpBackwardBackward"; }
  TensorList apply(TensorList grads) override { return gradients(grads[0], saved(0), saved(1), saved(2), saved(3)); }
  TensorList apply_recorded(TensorList grads) override {
    return gradients(grads[0], saved_input(0, 0), saved_input(1, 1), saved_input(2, 2), saved_output(3));
  }

 private:
  TensorList gradients(const Tensor& h, const Tensor& g, const Tensor& x, const Tensor& y, const Tensor& out) const {
    const Tensor back = recorded_sums(h, -y, -x, dim, !from_end);
    return {back, h * out, -(g * back)};
  }
};

Tensor recorded_sums(const Tensor& g, const Tensor& x, const Tensor& y, int dim, bool from_end) {
  const Tensor out = weighted_sums(g, x, y, dim, from_end);
  if (auto* node = record<WeightedSumsBackward>(out, {&g, &x, &y})) {
    node->dim = dim;
    node->from_end = from_end;
    node->save(g, x, y, out);
  }
  return out;
}

/// d/dx_i = sum over j >= i of g_j exp(x_i - out_j).
class LogCumsumExpBackward final : public Node {
 public:
  int dim = 0;
  const char* name() const override { return "LogCumsumExpBackward"; }
  TensorList apply(TensorList grads) override { return {weighted_sums(grads[0], saved(0), saved(1), dim, true)}; }
  TensorList apply_recorded(TensorList grads) override {
    return {recorded_sums(grads[0], saved_input(0, 0), saved_output(1), dim, true)};
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
