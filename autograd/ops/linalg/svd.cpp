#include <algorithm>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/linalg/linalg.h"
#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/linalg_named.h"
#include "lockstep/autograd/ops/linalg/matrices.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/support/on_cpu.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::linalg {
namespace {

constexpr KernelTable<detail::LinalgSvdKernel> svd_kernel{"linalg.svd", detail::linalg_svd_cpu};
using detail::transposed;

/// Townsend, "Differentiating the singular value decomposition" (2016).
class SvdBackward final : public Node {
 public:
  const char* name() const override { return "LinalgSvdBackward"; }
  TensorList apply(TensorList grads) override { return {gradient(grads, saved(0), saved(1), saved(2))}; }
  TensorList apply_recorded(TensorList grads) override {
    return {gradient(grads, saved_output(0, 0), saved_output(1, 1), saved_output(2, 2))};
  }

 private:
  static Tensor gradient(const TensorList& grads, const Tensor& u, const Tensor& s, const Tensor& vh) {
    const Tensor &of_u = grads[0], &of_s = grads[1], &of_vh = grads[2];
    if (!of_u.defined() && !of_s.defined() && !of_vh.defined()) return {};
    if (!of_u.defined() && !of_vh.defined()) return matmul(u * of_s.unsqueeze(-2), vh);
    const std::int64_t m = u.size(-2), k = s.size(-1), n = vh.size(-1);
    const Tensor one = eye(k, k, options_of(s)), row = s.unsqueeze(-2), column = s.unsqueeze(-1);
    // Over the differences of squares, by their factors: squares may vanish or overflow. On the diagonal is nothing.
    const Tensor differences = row - column + one, sums = row + column + one;
    const auto turning = [&](const Tensor& product) { return (product - transposed(product)) / differences; };
    Tensor inner = one * (of_s.defined() ? of_s : zeros(s.sizes(), options_of(s))).unsqueeze(-2), beyond;
    const auto add_beyond = [&](const Tensor& term) { beyond = beyond.defined() ? beyond + term : term; };
    if (of_u.defined()) {
      const Tensor along = matmul(transposed(u), of_u);
      inner = inner + turning(along) * (row / sums);
      if (m > k) add_beyond(matmul((of_u - matmul(u, along)) / row, vh));
    }
    if (of_vh.defined()) {
      const Tensor along = matmul(of_vh, transposed(vh));
      inner = inner + (column / sums) * turning(transposed(along));
      if (n > k) add_beyond(matmul(u, (of_vh - matmul(along, vh)) / column));
    }
    const Tensor within = matmul(matmul(u, inner), vh);
    return beyond.defined() ? within + beyond : within;
  }
};

/// Columns that complete those of q [..., m, k], which are orthonormal: [..., m, m - k].
Tensor complement(const Tensor& q) {
  const NoGradGuard values_only;
  return qr(q.detach(), "complete").q.slice(-1, q.size(-1), q.size(-2));
}

}  // namespace

SingularValues named::svd(const char* op, const Tensor& a, bool full_matrices) {
  detail::check_matrices(a, op);
  if (is_elsewhere(a)) {
    const SingularValues parts = svd(op, a.to(kCPU), full_matrices);
    return {parts.u.to(a.device()), parts.s.to(a.device()), parts.vh.to(a.device())};
  }
  const std::int64_t m = a.size(-2), n = a.size(-1), k = std::min(m, n);
  SingularValues out{empty(detail::sizes_with(a, {m, k}), options_of(a)),
                     empty(detail::sizes_with(a, {k}), options_of(a)),
                     empty(detail::sizes_with(a, {k, n}), options_of(a))};
  if (a.numel() > 0) {
    std::int64_t failed = -1;
    const Tensor u = detail::as_batch(out.u);
    svd_kernel(a)(detail::as_batch(a), u, out.s.view({u.size(0), k}), detail::as_batch(out.vh), failed);
    LOCKSTEP_CHECK(failed < 0, "[{}] matrix {} holds values that are not finite", op, failed);
  }
  const Tensor* outputs[] = {&out.u, &out.s, &out.vh};
  const Tensor* inputs[] = {&a};
  if (auto* node = record_many<SvdBackward>(outputs, inputs)) node->save(out.u, out.s, out.vh);
  if (full_matrices && m > k) out.u = cat({out.u, complement(out.u)}, -1);
  if (full_matrices && n > k) out.vh = cat({out.vh, transposed(complement(transposed(out.vh)))}, -2);
  return out;
}

SingularValues svd(const Tensor& a, bool full_matrices) {
  return named::svd("linalg.svd", a, full_matrices);
}

Tensor svdvals(const Tensor& a) {
  return named::svd("linalg.svdvals", a, /*full_matrices=*/false).s;
}

}  // namespace lockstep::linalg
