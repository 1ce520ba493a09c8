#include "lockstep/autograd/ops/linalg/linalg.h"

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/matrices.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/support/on_cpu.h"
#include "lockstep/autograd/ops/tril/tril.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::linalg {
namespace {

constexpr KernelTable<detail::LinalgSolveKernel> solve_kernel{"linalg.solve", detail::linalg_solve_cpu};
constexpr KernelTable<detail::LinalgSlogdetKernel> slogdet_kernel{"linalg.slogdet", detail::linalg_slogdet_cpu};
constexpr KernelTable<detail::LinalgCholeskyKernel> cholesky_kernel{"linalg.cholesky", detail::linalg_cholesky_cpu};

using detail::as_batch;
using detail::leading_sizes;
using detail::transposed;

/// Of equal leading sizes.
Tensor solve_values(const Tensor& a, const Tensor& b, const char* op) {
  const Tensor x = empty(b.sizes(), options_of(b));
  if (x.numel() == 0) return x;
  std::int64_t failed = -1;
  solve_kernel(a)(as_batch(a), as_batch(b), as_batch(x), failed);
  LOCKSTEP_CHECK(failed < 0, "[{}] matrix {} is singular: it has no inverse", op, failed);
  return x;
}

class SolveBackward final : public Node {
 public:
  const char* name() const override { return "LinalgSolveBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor right = solve_values(transposed(saved(0)), grads[0], "linalg.solve");
    TensorList out(2);
    if (needs_grad(0)) out[0] = -matmul(right, transposed(saved(1)));
    out[1] = right;
    return out;
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor right = solve(transposed(saved_input(0, 0)), grads[0]);
    TensorList out(2);
    if (needs_grad(0)) out[0] = -matmul(right, transposed(saved_output(1)));
    out[1] = right;
    return out;
  }
};

class SlogdetBackward final : public Node {
 public:
  const char* name() const override { return "LinalgSlogdetBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& a = saved(0);
    const Tensor ones = eye(a.size(-1), a.size(-1), options_of(a)).expand(a.sizes());
    return {grads[0].unsqueeze(-1).unsqueeze(-1) * solve_values(transposed(a), ones, "linalg.slogdet")};
  }
  TensorList apply_recorded(TensorList grads) override {
    return {grads[0].unsqueeze(-1).unsqueeze(-1) * inv(transposed(saved_input(0, 0)))};
  }
};

/// Murray, "Differentiation of the Cholesky decomposition" (2016), equation 10.
class CholeskyBackward final : public Node {
 public:
  const char* name() const override { return "LinalgCholeskyBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor& l = saved(0);
    const Tensor phi = tril(matmul(transposed(l), grads[0]));
    const Tensor half = phi - 0.5 * (phi * eye(l.size(-1), l.size(-1), options_of(l)));
    const Tensor left = solve_values(transposed(l), half, "linalg.cholesky");
    const Tensor both = transposed(solve_values(transposed(l), transposed(left), "linalg.cholesky"));
    return {0.5 * (both + transposed(both))};
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor l = saved_output(0), up = transposed(l);
    const Tensor phi = tril(matmul(up, grads[0]));
    const Tensor half = phi - 0.5 * (phi * eye(l.size(-1), l.size(-1), options_of(l)));
    const Tensor both = transposed(solve(up, transposed(solve(up, half))));
    return {0.5 * (both + transposed(both))};
  }
};

}  // namespace

Tensor solve(const Tensor& a, const Tensor& b) {
  detail::check_square_matrices(a, "linalg.solve");
  LOCKSTEP_CHECK(b.defined() && b.dtype() == a.dtype() && b.device() == a.device(),
                 "[linalg.solve] expected a right side of dtype {} on {}", name(a.dtype()), to_string(a.device()));
  if (is_elsewhere(a)) return solve(a.to(kCPU), b.to(kCPU)).to(a.device());
  if (b.dim() == 1) return solve(a, b.unsqueeze(-1)).squeeze(-1);
  LOCKSTEP_CHECK(b.dim() >= 2 && b.size(-2) == a.size(-1),
                 "[linalg.solve] expected a right side of {} rows for matrices {}, found {}", a.size(-1),
                 to_string(a.sizes()), to_string(b.sizes()));
  Shape left_sizes = broadcast_shapes(leading_sizes(a), leading_sizes(b), "linalg.solve"), right_sizes = left_sizes;
  left_sizes.push_back(a.size(-1));
  left_sizes.push_back(a.size(-1));
  right_sizes.push_back(b.size(-2));
  right_sizes.push_back(b.size(-1));
  const Tensor left = a.expand(left_sizes), right = b.expand(right_sizes);
  const Tensor out = solve_values(left, right, "linalg.solve");
  if (auto* node = record<SolveBackward>(out, {&left, &right})) node->save(left, out);
  return out;
}

Tensor inv(const Tensor& a) {
  detail::check_square_matrices(a, "linalg.inv");
  return solve(a, eye(a.size(-1), a.size(-1), options_of(a)).expand(a.sizes()));
}

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
  if (is_elsewhere(a)) return linalg::det(a.to(kCPU)).to(a.device());
  const SignAndLogDet parts = linalg::slogdet(a);
  return parts.sign * exp(parts.logabsdet);
}

Tensor cholesky(const Tensor& a) {
  detail::check_square_matrices(a, "linalg.cholesky");
  if (is_elsewhere(a)) return linalg::cholesky(a.to(kCPU)).to(a.device());
  const Tensor out = empty(a.sizes(), options_of(a));
  if (out.numel() > 0) {
    std::int64_t failed = -1;
    cholesky_kernel(a)(as_batch(a), as_batch(out), failed);
    LOCKSTEP_CHECK(failed < 0, "[linalg.cholesky] matrix {} is not positive definite; add a multiple of the identity",
                   failed);
  }
  if (auto* node = record<CholeskyBackward>(out, {&a})) node->save(out);
  return out;
}

Tensor solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool left, bool unitriangular) {
  detail::check_square_matrices(a, "linalg.solve_triangular");
  const int diagonal = unitriangular ? 1 : 0;
  Tensor triangle = upper ? triu(a, diagonal) : tril(a, -diagonal);
  if (unitriangular) triangle = triangle + eye(a.size(-1), a.size(-1), options_of(a));
  if (left) return solve(triangle, b);
  LOCKSTEP_CHECK(b.defined() && b.dim() >= 2, "[linalg.solve_triangular] expected a left side of matrices, found {}",
                 b.defined() ? to_string(b.sizes()) : "an undefined tensor");
  return transposed(solve(transposed(triangle), transposed(b)));
}

}  // namespace lockstep::linalg

namespace lockstep {

Tensor cholesky_solve(const Tensor& b, const Tensor& l, bool upper) {
  detail::check_square_matrices(l, "cholesky_solve");
  const Tensor other = l.transpose(-2, -1);
  return linalg::solve_triangular(upper ? l : other, linalg::solve_triangular(upper ? other : l, b, false), true);
}

}  // namespace lockstep
