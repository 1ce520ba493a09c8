#include <string>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/linalg/linalg.h"
#include "lockstep/autograd/ops/linalg/linalg_kernels.h"
#include "lockstep/autograd/ops/linalg/linalg_named.h"
#include "lockstep/autograd/ops/linalg/matrices.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/support/on_cpu.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep::linalg {
namespace {

constexpr KernelTable<detail::LinalgEighKernel> eigh_kernel{"linalg.eigh", detail::linalg_eigh_cpu};
using detail::transposed;

class EighBackward final : public Node {
 public:
  const char* name() const override { return "LinalgEighBackward"; }
  TensorList apply(TensorList grads) override { return {gradient(grads, saved(0), saved(1))}; }
  TensorList apply_recorded(TensorList grads) override {
    return {gradient(grads, saved_output(0, 0), saved_output(1, 1))};
  }

 private:
  /// v (diag(grad of values) + skew(v^T grad of v) / (differences of values)) v^T, which is symmetric.
  static Tensor gradient(const TensorList& grads, const Tensor& values, const Tensor& v) {
    const Tensor &of_values = grads[0], &of_vectors = grads[1];
    if (!of_values.defined() && !of_vectors.defined()) return {};
    if (!of_vectors.defined()) return matmul(v * of_values.unsqueeze(-2), transposed(v));
    const Tensor one = eye(v.size(-1), v.size(-1), options_of(v));
    const Tensor differences = values.unsqueeze(-2) - values.unsqueeze(-1) + one;
    const Tensor along = matmul(transposed(v), of_vectors);
    // Vectors of length 1 only turn: what is symmetric in this changes nothing.
    Tensor inner = 0.5 * (along - transposed(along)) / differences;
    if (of_values.defined()) inner = inner + one * of_values.unsqueeze(-2);
    return matmul(matmul(v, inner), transposed(v));
  }
};

}  // namespace

Eigenpairs named::eigh(const char* op, const Tensor& a, std::string_view triangle) {
  detail::check_square_matrices(a, op);
  LOCKSTEP_CHECK(triangle == "L" || triangle == "U", "[{}] expected the triangle \"L\" or \"U\", found \"{}\"", op,
                 std::string(triangle));
  if (is_elsewhere(a)) {
    const Eigenpairs pairs = eigh(op, a.to(kCPU), triangle);
    return {pairs.eigenvalues.to(a.device()), pairs.eigenvectors.to(a.device())};
  }
  const std::int64_t n = a.size(-1);
  const Eigenpairs out{empty(detail::sizes_with(a, {n}), options_of(a)), empty(a.sizes(), options_of(a))};
  if (a.numel() > 0) {
    std::int64_t failed = -1;
    const Tensor vectors = detail::as_batch(out.eigenvectors);
    eigh_kernel(a)(detail::as_batch(a), triangle == "U", out.eigenvalues.view({vectors.size(0), n}), vectors, failed);
    LOCKSTEP_CHECK(failed < 0, "[{}] matrix {} holds values that are not finite", op, failed);
  }
  const Tensor* outputs[] = {&out.eigenvalues, &out.eigenvectors};
  const Tensor* inputs[] = {&a};
  if (auto* node = record_many<EighBackward>(outputs, inputs)) node->save(out.eigenvalues, out.eigenvectors);
  return out;
}

Eigenpairs eigh(const Tensor& a, std::string_view triangle) {
  return named::eigh("linalg.eigh", a, triangle);
}

Tensor eigvalsh(const Tensor& a, std::string_view triangle) {
  return named::eigh("linalg.eigvalsh", a, triangle).eigenvalues;
}

}  // namespace lockstep::linalg
