#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/index/index.h"
#include "lockstep/autograd/ops/linalg/linalg.h"
#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/linalg_named.h"
#include "lockstep/autograd/ops/linalg/matrices.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/scan/scan.h"
#include "lockstep/autograd/ops/support/on_cpu.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::linalg {
namespace {

constexpr KernelTable<detail::LinalgSlogdetKernel> slogdet_kernel{"linalg.slogdet", detail::linalg_slogdet_cpu};
constexpr KernelTable<detail::LinalgDetKernel> det_kernel{"linalg.det", detail::linalg_det_cpu};

using detail::as_batch;
using detail::leading_sizes;
using detail::transposed;

Tensor unit_matrices(const Tensor& a) {
  return eye(a.size(-1), a.size(-1), options_of(a)).expand(a.sizes());
}
/// [...] beside matrices [..., n, n].
Tensor for_matrices(const Tensor& x) {
  return x.unsqueeze(-1).unsqueeze(-1);
}

/// The gradient of an inverse, as products of it: a solution of the transposed equations may end at a pivot that is 0
/// after rounding, where that of the equations themselves has none.
class InverseBackward final : public Node {
 public:
  const char* name() const override { return "LinalgInverseBackward"; }
  TensorList apply(TensorList grads) override { return {gradient(grads[0], saved(0))}; }
  TensorList apply_recorded(TensorList grads) override { return {gradient(grads[0], saved_output(0))}; }

 private:
  static Tensor gradient(const Tensor& grad, const Tensor& inverse) {
    const Tensor turned = transposed(inverse);
    return -matmul(matmul(turned, grad), turned);
  }
};

/// Of matrices on the CPU, whose elimination has found no pivot of 0; errors name `op`.
Tensor inverse_of(const char* op, const Tensor& a) {
  Tensor out;
  {
    const NoGradGuard values_only;
    out = named::solve_values(op, a.detach(), unit_matrices(a));
  }
  if (auto* node = record<InverseBackward>(out, {&a})) node->save(out);
  return out;
}

class SlogdetBackward final : public Node {
 public:
  const char* name() const override { return "LinalgSlogdetBackward"; }
  TensorList apply(TensorList grads) override {
    return {for_matrices(grads[0]) * transposed(inverse_of("linalg.slogdet", saved(0)))};
  }
  TensorList apply_recorded(TensorList grads) override {
    return {for_matrices(grads[0]) * transposed(inverse_of("linalg.slogdet", saved_input(0, 0)))};
  }
};

/// The cofactors of a = u diag(s) vh: with u and vh for their own, and the products of all s but one for those of s.
Tensor cofactors(const Tensor& a) {
  const auto [u, s, vh] = named::svd("linalg.det", a, /*full_matrices=*/false);
  const Tensor others = prod(where(eye(s.size(-1), s.size(-1), options_of(s)) > 0.0, 1.0, s.unsqueeze(-2)), -1);
  const Tensor turned = linalg::slogdet(u.detach()).sign * linalg::slogdet(vh.detach()).sign;
  return for_matrices(turned) * matmul(u * others.unsqueeze(-2), vh);
}

/// The cofactors, which are det(a) times the inverse of a^T where there is one. Matrices that have none are computed
/// apart, by way of others in their place.
class DetBackward final : public Node {
 public:
  const char* name() const override { return "LinalgDetBackward"; }
  TensorList apply(TensorList grads) override { return {gradient(grads[0], saved(0), saved(1))}; }
  TensorList apply_recorded(TensorList grads) override {
    return {gradient(grads[0], saved_input(0, 0), saved_output(1, 0))};
  }

 private:
  static Tensor gradient(const Tensor& grad, const Tensor& a, const Tensor& det) {
    const auto of_regular = [&](const Tensor& regular) {
      // That matrix, not its transpose, was found to have an inverse.
      return for_matrices(grad * det) * transposed(inverse_of("linalg.det", regular));
    };
    const Tensor singular = det.detach() == 0.0;
    if (!singular.any().item<bool>()) return of_regular(a);
    const Tensor here = for_matrices(singular), one = unit_matrices(a);
    return where(here, for_matrices(grad) * cofactors(where(here, a, one)), of_regular(where(here, one, a)));
  }
};

}  // namespace

SignAndLogDet slogdet(const Tensor& a) {
  detail::check_square_matrices(a, "linalg.slogdet");
  if (is_elsewhere(a)) {
    const SignAndLogDet parts = linalg::slogdet(a.to(kCPU));
    return {parts.sign.to(a.device()), parts.logabsdet.to(a.device())};
  }
  const Shape sizes = leading_sizes(a);
  const SignAndLogDet out{ones(sizes, options_of(a)), zeros(sizes, options_of(a))};
  if (a.numel() > 0) {
    const std::int64_t count = sizes.numel();
    slogdet_kernel(a)(as_batch(a), out.sign.view({count}), out.logabsdet.view({count}));
  }
  if (auto* node = record<SlogdetBackward>(out.logabsdet, {&a})) node->save(a);
  return out;
}

Tensor det(const Tensor& a) {
  detail::check_square_matrices(a, "linalg.det");
  if (is_elsewhere(a)) return linalg::det(a.to(kCPU)).to(a.device());
  Tensor out = ones(leading_sizes(a), options_of(a));
  if (a.numel() > 0) det_kernel(a)(as_batch(a), out.view({out.numel()}));
  if (auto* node = record<DetBackward>(out, {&a})) node->save(a, out);
  return out;
}

}  // namespace lockstep::linalg
