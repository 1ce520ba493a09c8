#include "lockstep/autograd/ops/linalg/linalg.h"

#include <limits>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/linalg_named.h"
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
constexpr KernelTable<detail::LinalgCholeskyKernel> cholesky_kernel{"linalg.cholesky", detail::linalg_cholesky_cpu};

using detail::as_batch;
using detail::leading_sizes;
using detail::transposed;

class SolveBackward final : public Node {
 public:
  const char* op = "linalg.solve";
  const char* name() const override { return "LinalgSolveBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor right = named::solve_values(op, transposed(saved(0)), grads[0]);
    TensorList out(2);
    if (needs_grad(0)) out[0] = -matmul(right, transposed(saved(1)));
    out[1] = right;
    return out;
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor right = named::solve(op, transposed(saved_input(0, 0)), grads[0]);
    TensorList out(2);
    if (needs_grad(0)) out[0] = -matmul(right, transposed(saved_output(1)));
    out[1] = right;
    return out;
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
    const Tensor left = named::solve_values("linalg.cholesky", transposed(l), half);
    const Tensor both = transposed(named::solve_values("linalg.cholesky", transposed(l), transposed(left)));
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

Tensor named::solve_values(const char* op, const Tensor& a, const Tensor& b) {
  const Tensor x = empty(b.sizes(), options_of(b));
  if (x.numel() == 0) return x;
  std::int64_t failed = -1;
  solve_kernel(a)(as_batch(a), as_batch(b), as_batch(x), failed);
  LOCKSTEP_CHECK(failed < 0, "[{}] matrix {} is singular: it has no inverse", op, failed);
  return x;
}

Tensor named::solve(const char* op, const Tensor& a, const Tensor& b) {
  detail::check_square_matrices(a, op);
  LOCKSTEP_CHECK(b.defined() && b.dtype() == a.dtype() && b.device() == a.device(),
                 "[{}] expected a right side of dtype {} on {}", op, name(a.dtype()), to_string(a.device()));
  if (is_elsewhere(a)) return solve(op, a.to(kCPU), b.to(kCPU)).to(a.device());
  if (b.dim() == 1) return solve(op, a, b.unsqueeze(-1)).squeeze(-1);
  LOCKSTEP_CHECK(b.dim() >= 2 && b.size(-2) == a.size(-1),
                 "[{}] expected a right side of {} rows for matrices {}, found {}", op, a.size(-1),
                 to_string(a.sizes()), to_string(b.sizes()));
  Shape left_sizes = broadcast_shapes(leading_sizes(a), leading_sizes(b), op), right_sizes = left_sizes;
  left_sizes.push_back(a.size(-1));
  left_sizes.push_back(a.size(-1));
  right_sizes.push_back(b.size(-2));
  right_sizes.push_back(b.size(-1));
  const Tensor left = a.expand(left_sizes), right = b.expand(right_sizes);
  const Tensor out = solve_values(op, left, right);
  if (auto* node = record<SolveBackward>(out, {&left, &right})) {
    node->op = op;
    node->save(left, out);
  }
  return out;
}

Tensor solve(const Tensor& a, const Tensor& b) {
  return named::solve("linalg.solve", a, b);
}

Tensor inv(const Tensor& a) {
  detail::check_square_matrices(a, "linalg.inv");
  return named::solve("linalg.inv", a, eye(a.size(-1), a.size(-1), options_of(a)).expand(a.sizes()));
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

Tensor named::solve_triangular(const char* op, const Tensor& a, const Tensor& b, bool upper, bool left,
                               bool unitriangular) {
  detail::check_square_matrices(a, op);
  const int diagonal = unitriangular ? 1 : 0;
  Tensor triangle = upper ? triu(a, diagonal) : tril(a, -diagonal);
  if (unitriangular) triangle = triangle + eye(a.size(-1), a.size(-1), options_of(a));
  if (left) return solve(op, triangle, b);
  LOCKSTEP_CHECK(b.defined() && b.dim() >= 2, "[{}] expected a left side of matrices, found {}", op,
                 b.defined() ? to_string(b.sizes()) : "an undefined tensor");
  return transposed(solve(op, transposed(triangle), transposed(b)));
}

Tensor solve_triangular(const Tensor& a, const Tensor& b, bool upper, bool left, bool unitriangular) {
  return named::solve_triangular("linalg.solve_triangular", a, b, upper, left, unitriangular);
}

}  // namespace lockstep::linalg

namespace lockstep {

Tensor logdet(const Tensor& a) {
  detail::check_square_matrices(a, "logdet");
  const auto [sign, logabsdet] = linalg::slogdet(a);
  return where(sign < 0.0, std::numeric_limits<double>::quiet_NaN(), logabsdet);
}

Tensor cholesky_solve(const Tensor& b, const Tensor& l, bool upper) {
  const auto solved = [](const Tensor& triangle, const Tensor& right, bool is_upper) {
    return linalg::named::solve_triangular("cholesky_solve", triangle, right, is_upper, true, false);
  };
  detail::check_square_matrices(l, "cholesky_solve");
  const Tensor other = l.transpose(-2, -1);
  return solved(upper ? l : other, solved(upper ? other : l, b, false), true);
}

}  // namespace lockstep
