#include <algorithm>
#include <limits>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/index/index.h"
#include "lockstep/autograd/ops/linalg/linalg.h"
#include "lockstep/autograd/ops/linalg/linalg_named.h"
#include "lockstep/autograd/ops/linalg/matrices.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"

namespace lockstep::linalg {
namespace {

using detail::transposed;

/// Which singular values [..., k] of a count.
Tensor counting(const Tensor& s, const Tensor& a, std::optional<double> rtol) {
  const double epsilon =
      a.dtype() == kFloat64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
  const double bound = rtol.value_or(epsilon * static_cast<double>(std::max(a.size(-1), a.size(-2))));
  return s > s.slice(-1, 0, 1) * bound;
}

/// Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares problems" (1973).
class PinvBackward final : public Node {
 public:
  const char* name() const override { return "LinalgPinvBackward"; }
  TensorList apply(TensorList grads) override { return {gradient(grads[0], saved(0), saved(1))}; }
  TensorList apply_recorded(TensorList grads) override {
    return {gradient(grads[0], saved_input(0, 0), saved_output(1, 0))};
  }

 private:
  static Tensor gradient(const Tensor& grad, const Tensor& a, const Tensor& p) {
    const Tensor up = transposed(p), turned = transposed(grad);
    const Tensor right = matmul(turned, matmul(p, up)), left = matmul(matmul(up, p), turned);
    return right - matmul(a, matmul(p, right)) + left - matmul(matmul(left, p), a) - matmul(matmul(up, grad), up);
  }
};

}  // namespace

Tensor named::pinv(const char* op, const Tensor& a, std::optional<double> rtol) {
  Tensor out;
  {
    const NoGradGuard values_only;
    const auto [u, s, vh] = svd(op, a, /*full_matrices=*/false);
    const Tensor counts = counting(s, a, rtol);
    out = matmul(transposed(vh) * where(counts, 1.0 / where(counts, s, 1.0), 0.0).unsqueeze(-2), transposed(u));
  }
  if (auto* node = record<PinvBackward>(out, {&a})) node->save(a, out);
  return out;
}

Tensor pinv(const Tensor& a, std::optional<double> rtol) {
  return named::pinv("linalg.pinv", a, rtol);
}

Tensor matrix_rank(const Tensor& a, std::optional<double> rtol) {
  const NoGradGuard values_only;
  return sum(counting(named::svd("linalg.matrix_rank", a, /*full_matrices=*/false).s, a, rtol).to(kInt64), {-1});
}

Tensor lstsq(const Tensor& a, const Tensor& b, std::optional<double> rtol) {
  detail::check_matrices(a, "linalg.lstsq");
  LOCKSTEP_CHECK(b.defined() && b.dtype() == a.dtype() && b.device() == a.device(),
                 "[linalg.lstsq] expected a right side of dtype {} on {}", name(a.dtype()), to_string(a.device()));
  if (b.dim() == 1) return lstsq(a, b.unsqueeze(-1), rtol).squeeze(-1);
  LOCKSTEP_CHECK(b.dim() >= 2 && b.size(-2) == a.size(-2),
                 "[linalg.lstsq] expected a right side of {} rows for matrices {}, found {}", a.size(-2),
                 to_string(a.sizes()), to_string(b.sizes()));
  return matmul(named::pinv("linalg.lstsq", a, rtol), b);
}

Tensor cond(const Tensor& a) {
  const Tensor s = named::svd("linalg.cond", a, /*full_matrices=*/false).s;
  if (s.size(-1) == 0) return sum(a, {-2, -1});  // zeros
  return s.select(-1, 0) / s.select(-1, -1);
}

}  // namespace lockstep::linalg
