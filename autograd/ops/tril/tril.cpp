#include "lockstep/autograd/ops/tril/tril.h"

#include "lockstep/autograd/ops/tril/tril_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/kernel_table.h"

namespace lockstep {
namespace {

constexpr KernelTable<detail::TriangleKernel> triangle_kernel{"tril", detail::triangle_cpu,
                                                              LOCKSTEP_CUDA_KERNEL(detail::triangle_cuda)};

Tensor triangle(const Tensor& values, std::int64_t diagonal, bool upper) {
  const Tensor x = as_contiguous(values);
  Tensor out = empty(x.sizes(), options_of(x));
  if (x.numel() > 0) triangle_kernel(x)(x, out, diagonal, upper);
  return out;
}

struct TriangleBackward final : Node {
  std::int64_t diagonal = 0;
  bool upper = false;

  const char* name() const override { return upper ? "TriuBackward" : "TrilBackward"; }
  TensorList apply(TensorList grads) override { return {triangle(grads[0], diagonal, upper)}; }
  TensorList apply_recorded(TensorList grads) override {
    return {upper ? triu(grads[0], diagonal) : tril(grads[0], diagonal)};
  }
};

Tensor recorded(const Tensor& x, std::int64_t diagonal, bool upper) {
  const char* const op = upper ? "triu" : "tril";
  LOCKSTEP_CHECK(x.defined() && x.dim() >= 2, "[{}] expected a tensor [..., rows, columns], found {}", op,
                 x.defined() ? to_string(x.sizes()) : "an undefined one");
  Tensor out = triangle(x, diagonal, upper);
  if (auto* node = record<TriangleBackward>(out, {&x})) {
    node->diagonal = diagonal;
    node->upper = upper;
  }
  return out;
}

}  // namespace

Tensor tril(const Tensor& x, std::int64_t diagonal) {
  return recorded(x, diagonal, false);
}

Tensor triu(const Tensor& x, std::int64_t diagonal) {
  return recorded(x, diagonal, true);
}

}  // namespace lockstep
