#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/binary_computation.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/factories.h"

namespace lockstep {

using binary::Form;

namespace {

constexpr KernelTable<WhereKernel> where_kernel{"where", where_cpu, LOCKSTEP_CUDA_KERNEL(where_cuda)};

/// Records nothing.
Tensor choose(const Tensor& condition, const Operand& a, const Operand& b) {
  binary::check_operands(condition, a, "where");
  binary::check_operands(condition, b, "where");
  binary::check_operands(a, b, "where");
  LOCKSTEP_CHECK(condition.dtype() == kBool, "[where] expected a bool condition, found {}; compare it to something",
                 name(condition.dtype()));
  const DType dtype = binary::promote(a, b);
  for (const Operand* operand : {&a, &b})
    if (!operand->tensor) check_in_range(operand->scalar, dtype, "where");
  Shape sizes = condition.sizes();
  if (a.tensor) sizes = broadcast_shapes(sizes, a.tensor->sizes(), "where");
  if (b.tensor) sizes = broadcast_shapes(sizes, b.tensor->sizes(), "where");
  Tensor out = elementwise_where(condition, a, b, sizes, dtype);
  if (out.defined()) return out;
  out = empty(sizes, {.dtype = dtype, .device = condition.device()});
  where_kernel(out)(condition, a, b, out);
  return out;
}

class WhereBackward final : public Node {
 public:
  const char* name() const override { return "WhereBackward"; }
  bool is_elementwise() const override { return true; }
  TensorList apply(TensorList grads) override {
    const Tensor& chosen = saved(0);
    TensorList results(2);
    if (needs_grad(0)) results[0] = a.fit(choose(chosen, grads[0], Scalar(0)));
    if (needs_grad(1)) results[1] = b.fit(choose(chosen, Scalar(0), grads[0]));
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    TensorList results(2);
    if (needs_grad(0)) results[0] = a.fit_recorded(where(saved(0), grads[0], 0));
    if (needs_grad(1)) results[1] = b.fit_recorded(where(saved(0), 0, grads[0]));
    return results;
  }

  Form a, b;
};

Tensor choose_and_record(const Tensor& condition, const Operand& a, const Operand& b) {
  Tensor out = choose(condition, a, b);
  const Tensor none;
  if (auto* node = record<WhereBackward>(out, {a.tensor ? a.tensor : &none, b.tensor ? b.tensor : &none})) {
    node->save(condition);
    if (a.tensor) node->a = Form(*a.tensor);
    if (b.tensor) node->b = Form(*b.tensor);
  }
  return out;
}

}  // namespace

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  if (binary::are_apart(condition, a)) [[unlikely]]
    return where(binary::beside(condition, a), binary::beside(a, condition), b);
  if (binary::are_apart(condition, b)) [[unlikely]]
    return where(condition, a, binary::beside(b, condition));
  return choose_and_record(condition, a, b);
}
Tensor where(const Tensor& condition, const Tensor& a, Scalar b) {
  if (binary::are_apart(condition, a)) [[unlikely]]
    return where(binary::beside(condition, a), binary::beside(a, condition), b);
  return choose_and_record(condition, a, b);
}
Tensor where(const Tensor& condition, Scalar a, const Tensor& b) {
  if (binary::are_apart(condition, b)) [[unlikely]]
    return where(binary::beside(condition, b), a, binary::beside(b, condition));
  return choose_and_record(condition, a, b);
}
Tensor where(const Tensor& condition, Scalar a, Scalar b) {
  const auto dtype = [](Scalar number) {
    return number.is_floating_point() ? kFloat32 : number.is_bool() ? kBool : kInt64;
  };
  LOCKSTEP_CHECK(condition.defined(), "[where] the condition is undefined");
  return where(condition, scalar_tensor(a, {.dtype = promote_types(dtype(a), dtype(b)), .device = condition.device()}),
               b);
}

}  // namespace lockstep
