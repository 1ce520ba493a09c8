#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/binary_computation.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

constexpr KernelTable<CompareKernel> compare_kernel{"compare", compare_cpu, LOCKSTEP_CUDA_KERNEL(compare_cuda)};

Tensor compare(CompareOp op, const Operand& a, const Operand& b, const char* name) {
  if (a.tensor && b.tensor && binary::are_apart(*a.tensor, *b.tensor)) [[unlikely]]
    return compare(op, binary::beside(*a.tensor, *b.tensor), binary::beside(*b.tensor, *a.tensor), name);
  binary::check_operands(a, b, name);
  const DType type = cpu::compute_dtype(binary::promote(a, b));
  const Shape sizes = binary::result_sizes(a, b, name);
  Tensor out = elementwise_compare(op, a, b, sizes, type);
  if (out.defined()) return out;
  out = empty(sizes, {.dtype = kBool, .device = (a.tensor ? a.tensor : b.tensor)->device()});
  compare_kernel(out)(op, a, b, type, out);
  return out;
}

}  // namespace

Tensor same_values(const Tensor& a, const Tensor& b) {
  return compare(CompareOp::same, a, b, "same");
}

Tensor eq(const Tensor& a, const Tensor& b) {
  return compare(CompareOp::equal, a, b, "eq");
}
Tensor eq(const Tensor& a, Scalar b) {
  return compare(CompareOp::equal, a, b, "eq");
}
Tensor ne(const Tensor& a, const Tensor& b) {
  return compare(CompareOp::not_equal, a, b, "ne");
}
Tensor ne(const Tensor& a, Scalar b) {
  return compare(CompareOp::not_equal, a, b, "ne");
}
Tensor lt(const Tensor& a, const Tensor& b) {
  return compare(CompareOp::less, a, b, "lt");
}
Tensor lt(const Tensor& a, Scalar b) {
  return compare(CompareOp::less, a, b, "lt");
}
Tensor le(const Tensor& a, const Tensor& b) {
  return compare(CompareOp::less_equal, a, b, "le");
}
Tensor le(const Tensor& a, Scalar b) {
  return compare(CompareOp::less_equal, a, b, "le");
}
Tensor gt(const Tensor& a, const Tensor& b) {
  return compare(CompareOp::less, b, a, "gt");
}
Tensor gt(const Tensor& a, Scalar b) {
  return compare(CompareOp::less, b, a, "gt");
}
Tensor ge(const Tensor& a, const Tensor& b) {
  return compare(CompareOp::less_equal, b, a, "ge");
}
Tensor ge(const Tensor& a, Scalar b) {
  return compare(CompareOp::less_equal, b, a, "ge");
}

}  // namespace lockstep
