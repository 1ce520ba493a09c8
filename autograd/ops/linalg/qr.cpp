#include <algorithm>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/cat/cat.h"
#include "lockstep/autograd/ops/linalg/linalg.h"
#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/matrices.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/support/on_cpu.h"
#include "lockstep/autograd/ops/tril/tril.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::linalg {
namespace {

constexpr KernelTable<detail::LinalgQrKernel> qr_kernel{"linalg.qr", detail::linalg_qr_cpu};
using detail::transposed;

/// For r square: Walter and Lehmann, "Algorithmic differentiation of linear algebra functions with application in
/// optimum experimental design" (2010). Either gradient may be undefined.
Tensor square_gradient(const Tensor& grad_q, const Tensor& grad_r, const Tensor& q, const Tensor& r) {
  Tensor inner;
  if (grad_r.defined()) inner = matmul(r, transposed(grad_r));
  if (grad_q.defined()) {
    const Tensor product = matmul(transposed(grad_q), q);
    inner = inner.defined() ? inner - product : -product;
  }
  const Tensor symmetric = tril(inner) + transposed(tril(inner, -1));
  const Tensor sum = grad_q.defined() ? grad_q + matmul(q, symmetric) : matmul(q, symmetric);
  return transposed(solve_triangular(r, transposed(sum), /*upper=*/true));
}

class QrBackward final : public Node {
 public:
  const char* name() const override { return "LinalgQrBackward"; }
  TensorList apply(TensorList grads) override { return {gradient(grads, saved(0), saved(1))}; }
  TensorList apply_recorded(TensorList grads) override {
    return {gradient(grads, saved_output(0, 0), saved_output(1, 1))};
  }

 private:
  static Tensor gradient(const TensorList& grads, const Tensor& q, const Tensor& r) {
    const Tensor &grad_q = grads[0], &grad_r = grads[1];
    if (!grad_q.defined() && !grad_r.defined()) return {};
    const std::int64_t m = q.size(-2), k = q.size(-1), n = r.size(-1);
    LOCKSTEP_CHECK(k == std::min(m, n),
                   "[linalg.qr] has no gradient in the mode \"complete\" for matrices of more rows than columns; use "
                   "\"reduced\"");
    if (n <= m) return square_gradient(grad_q, grad_r, q, r);
    // a = [x y] and r = [u v], where x = q u alone decides q, and y = q v.
    const Tensor u = r.slice(-1, 0, m);
    if (!grad_r.defined())
      return cat({square_gradient(grad_q, {}, q, u), zeros(detail::sizes_with(q, {m, n - m}), options_of(q))}, -1);
    const Tensor grad_v = grad_r.slice(-1, m, n);
    const Tensor y = matmul(q, r.slice(-1, m, n));
    const Tensor of_y = matmul(y, transposed(grad_v));
    return cat(
        {square_gradient(grad_q.defined() ? grad_q + of_y : of_y, grad_r.slice(-1, 0, m), q, u), matmul(q, grad_v)},
        -1);
  }
};

}  // namespace

QAndR qr(const Tensor& a, std::string_view mode) {
  detail::check_matrices(a, "linalg.qr");
  LOCKSTEP_CHECK(mode == "reduced" || mode == "complete" || mode == "r",
                 "[linalg.qr] expected the mode \"reduced\", \"complete\" or \"r\", found \"{}\"", mode);
  if (is_elsewhere(a)) {
    const QAndR parts = linalg::qr(a.to(kCPU), mode);
    return {parts.q.defined() ? parts.q.to(a.device()) : parts.q, parts.r.to(a.device())};
  }
  const std::int64_t m = a.size(-2), n = a.size(-1), k = mode == "complete" ? m : std::min(m, n);
  // The gradient of r needs q.
  const bool wants_q = mode != "r" || (GradMode::enabled() && a.requires_grad());
  QAndR out{wants_q ? empty(detail::sizes_with(a, {m, k}), options_of(a)) : Tensor(),
            empty(detail::sizes_with(a, {k, n}), options_of(a))};
  if (a.numel() > 0) {
    qr_kernel(a)(detail::as_batch(a), wants_q ? detail::as_batch(out.q) : Tensor(), detail::as_batch(out.r));
  } else if (wants_q) {
    out.q.copy_(eye(m, k, options_of(a)).expand(out.q.sizes()));
  }
  if (wants_q) {
    const Tensor* outputs[] = {&out.q, &out.r};
    const Tensor* inputs[] = {&a};
    if (auto* node = record_many<QrBackward>(outputs, inputs)) node->save(out.q, out.r);
  }
  if (mode == "r") out.q = {};
  return out;
}

}  // namespace lockstep::linalg
