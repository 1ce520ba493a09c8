#include <utility>

#include "lockstep/autograd/ops/binary/arithmetic_nodes.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/binary_computation.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/factories.h"

namespace lockstep {

using binary::AddBackward;
using binary::AddScalarBackward;
using binary::are_apart;
using binary::beside;
using binary::compute;
using binary::DivBackward;
using binary::Form;
using binary::LerpBackward;
using binary::MulBackward;
using binary::MulScalarBackward;

namespace {

constexpr KernelTable<BinaryKernel> binary_kernel{"binary", binary_cpu, LOCKSTEP_CUDA_KERNEL(binary_cuda)};

/// op(a, b) of tensors of the same sizes, or of one and a number, where one is laid out (Note [Channels last]): laid
/// out too. Else undefined.
Tensor compute_laid_out(BinaryOp op, const Operand& a, const Operand& b, double alpha, DType dtype) {
  const Tensor x = a.tensor ? channels_last_of(*a.tensor) : Tensor(),
               y = b.tensor ? channels_last_of(*b.tensor) : Tensor();
  if (!x.defined() && !y.defined()) return {};
  if (a.tensor && b.tensor && a.tensor->sizes() != b.tensor->sizes()) return {};
  const Tensor first = a.tensor ? to_channels_last(*a.tensor) : Tensor(),
               second = b.tensor ? to_channels_last(*b.tensor) : Tensor();
  const Tensor out =
      empty(x.defined() ? x.sizes() : y.sizes(), {.dtype = dtype, .device = (x.defined() ? x : y).device()});
  binary_kernel(out)(op, alpha, a.tensor ? Operand(first) : a, b.tensor ? Operand(second) : b,
                     cpu::compute_dtype(dtype), out);
  return from_channels_last(out);
}

/// op(a, b) of `dtype`, which may be left pending.
Tensor compute_now_or_later(BinaryOp op, const Operand& a, const Operand& b, double alpha, DType dtype,
                            const char* name) {
  const Shape sizes = binary::result_sizes(a, b, name);
  if (Tensor later = elementwise_binary(op, a, b, alpha, sizes, dtype); later.defined()) return later;
  Tensor out = empty(sizes, {.dtype = dtype, .device = (a.tensor ? a.tensor : b.tensor)->device()});
  binary_kernel(out)(op, alpha, a, b, cpu::compute_dtype(dtype), out);
  return out;
}

}  // namespace

Tensor binary::compute(BinaryOp op, const Operand& a, const Operand& b, double alpha, const char* name) {
  binary::check_operands(a, b, name);
  DType dtype = binary::promote(a, b);
  if (op == BinaryOp::div && !is_floating_point(dtype)) dtype = kFloat32;
  if (Tensor laid_out = compute_laid_out(op, a, b, alpha, dtype); laid_out.defined()) return laid_out;
  return compute_now_or_later(op, a, b, alpha, dtype, name);
}

Tensor binary::compute_wide(BinaryOp op, const Operand& a, const Operand& b) {
  const DType dtype = cpu::compute_dtype(binary::promote(a, b));
  return compute_now_or_later(op, a, b, 1.0, dtype, "binary");
}

namespace {

/// Integers take whole multiples alone.
void check_alpha(const Operand& a, const Operand& b, double alpha, const char* op) {
  binary::check_operands(a, b, op);
  LOCKSTEP_CHECK(Scalar(alpha).is_whole() || is_floating_point(binary::promote(a, b)),
                 "[{}] expected a whole alpha for {} tensors, found {}; convert one to a floating-point dtype", op,
                 name(binary::promote(a, b)), alpha);
}

void check_not_bool(const Operand& a, const Operand& b, const char* op) {
  binary::check_operands(a, b, op);
  LOCKSTEP_CHECK(binary::promote(a, b) != kBool, "[{}] is not defined for bool operands; use ne() for exclusive or",
                 op);
}

Tensor add_scaled(const Tensor& a, const Tensor& b, double alpha, const char* name) {
  if (alpha != 1.0) check_alpha(a, b, alpha, name);
  Tensor out = alpha == 1.0 ? joined_sum(a, b) : Tensor();
  if (!out.defined()) out = compute(BinaryOp::add, a, b, alpha, name);
  if (auto* node = record<AddBackward>(out, {&a, &b})) {
    node->a = Form(a);
    node->b = Form(b);
    node->alpha = alpha;
  }
  return out;
}

}  // namespace

Tensor binary_values(BinaryOp op, const Operand& a, const Operand& b, double alpha) {
  return compute(op, a, b, alpha, "binary");
}

Tensor add(const Tensor& a, const Tensor& b, double alpha) {
  if (are_apart(a, b)) [[unlikely]]
    return add(beside(a, b), beside(b, a), alpha);
  return add_scaled(a, b, alpha, "add");
}

Tensor add(const Tensor& a, Scalar b) {
  Tensor out = compute(BinaryOp::add, a, b, 1.0, "add");
  record<AddScalarBackward>(out, {&a});
  return out;
}

Tensor sub(const Tensor& a, const Tensor& b, double alpha) {
  if (are_apart(a, b)) [[unlikely]]
    return sub(beside(a, b), beside(b, a), alpha);
  check_not_bool(a, b, "sub");
  return add_scaled(a, b, -alpha, "sub");
}

Tensor sub(const Tensor& a, Scalar b) {
  check_not_bool(a, b, "sub");
  Tensor out = compute(BinaryOp::add, a, b, -1.0, "sub");
  record<AddScalarBackward>(out, {&a});
  return out;
}

Tensor sub(Scalar a, const Tensor& b) {
  check_not_bool(a, b, "sub");
  Tensor out = compute(BinaryOp::add, a, b, -1.0, "sub");
  if (auto* node = record<MulScalarBackward>(out, {&b})) node->factor = -1.0;
  return out;
}

Tensor mul(const Tensor& a, const Tensor& b) {
  if (are_apart(a, b)) [[unlikely]]
    return mul(beside(a, b), beside(b, a));
  Tensor out = compute(BinaryOp::mul, a, b, 1.0, "mul");
  if (auto* node = record<MulBackward>(out, {&a, &b})) {
    node->save(node->needs_grad(1) ? a : Tensor(), node->needs_grad(0) ? b : Tensor());
    node->form_a = Form(a);
    node->form_b = Form(b);
  }
  return out;
}

Tensor mul(const Tensor& a, Scalar b) {
  Tensor out = compute(BinaryOp::mul, a, b, 1.0, "mul");
  if (auto* node = record<MulScalarBackward>(out, {&a})) node->factor = b.to_double();
  return out;
}

Tensor div(const Tensor& a, const Tensor& b) {
  if (are_apart(a, b)) [[unlikely]]
    return div(beside(a, b), beside(b, a));
  Tensor out = compute(BinaryOp::div, a, b, 1.0, "div");
  if (auto* node = record<DivBackward>(out, {&a, &b})) {
    node->save(node->needs_grad(1) ? a : Tensor(), b);
    node->form_a = Form(a);
    node->form_b = Form(b);
  }
  return out;
}

Tensor div(const Tensor& a, Scalar b) {
  Tensor out = compute(BinaryOp::div, a, b, 1.0, "div");
  const Tensor none;
  if (auto* node = record<DivBackward>(out, {&a, &none})) {
    node->save(none, none);
    node->scalar_b = b.to_double();
    node->form_a = Form(a);
  }
  return out;
}

Tensor div(Scalar a, const Tensor& b) {
  Tensor out = compute(BinaryOp::div, a, b, 1.0, "div");
  const Tensor none;
  if (auto* node = record<DivBackward>(out, {&none, &b})) {
    node->scalar_a = a.to_double();
    node->save(none, b);
    node->form_b = Form(b);
  }
  return out;
}

namespace {

/// Checks `target op= other` and bumps the version. True if it is to be recorded.
bool begin_in_place(const Tensor& target, const Operand& other, const char* op) {
  binary::check_operands(target, other, op);
  if (other.tensor)
    LOCKSTEP_CHECK(broadcast_shapes(target.sizes(), other.tensor->sizes(), op) == target.sizes(),
                   "[{}] an operand of shape {} does not broadcast to the target's shape {}", op,
                   to_string(other.tensor->sizes()), to_string(target.sizes()));
  check_result_fits(binary::promote(target, other), target, op);
  const bool recording = other.tensor ? should_record({&target, other.tensor}) : should_record({&target});
  check_in_place(target, recording, op);
  return recording;
}

void write_in_place(BinaryOp op, double alpha, const Tensor& target, const Operand& other) {
  const DType dtype = cpu::compute_dtype(binary::promote(target, other));
  if (!other.tensor) return binary_kernel(target)(op, alpha, target, other, dtype, target);
  const Tensor source = without_overlap(*other.tensor, target);
  binary_kernel(target)(op, alpha, target, source, dtype, target);
}

/// `source` as it is now, even if `target` is about to change it.
Tensor value_before(const Tensor& source, const Tensor& target) {
  return source.storage() == target.storage() ? copy_contiguous(source) : source;
}

const Tensor& add_in_place(const Tensor& target, const Tensor& other, double alpha, const char* op) {
  if (are_apart(target, other) && !target.device().is_cpu()) [[unlikely]]
    return add_in_place(target, beside(other, target), alpha, op);
  if (alpha != 1.0) check_alpha(target, other, alpha, op);
  if (alpha < 0.0) check_not_bool(target, other, op);
  if (alpha != 1.0 || !replace_by_joined_sum(target, other)) {
    begin_in_place(target, other, op);
    write_in_place(BinaryOp::add, alpha, target, other);
  }
  if (auto* node = record_in_place<AddBackward>(target, {&target, &other})) {
    node->a = Form(target);
    node->b = Form(other);
    node->alpha = alpha;
  }
  return target;
}

const Tensor& add_in_place(const Tensor& target, Scalar value, double alpha, const char* op) {
  if (alpha < 0.0) check_not_bool(target, value, op);
  const bool recording = begin_in_place(target, value, op);
  write_in_place(BinaryOp::add, alpha, target, value);
  if (recording) record_in_place<AddScalarBackward>(target, {&target});
  return target;
}

const Tensor& mul_in_place(const Tensor& target, const Tensor& other, const char* op) {
  if (are_apart(target, other) && !target.device().is_cpu()) [[unlikely]]
    return mul_in_place(target, beside(other, target), op);
  const bool recording = begin_in_place(target, other, op);
  const Tensor a = recording && needs_grad(other) ? copy_contiguous(target) : Tensor();
  const Tensor b = recording && needs_grad(target) ? value_before(other, target) : Tensor();
  write_in_place(BinaryOp::mul, 1.0, target, other);
  if (!recording) return target;
  if (auto* node = record_in_place<MulBackward>(target, {&target, &other})) {
    node->save(a, b);
    node->form_a = Form(target);
    node->form_b = Form(other);
  }
  return target;
}

const Tensor& mul_in_place(const Tensor& target, Scalar value, const char* op) {
  const bool recording = begin_in_place(target, value, op);
  write_in_place(BinaryOp::mul, 1.0, target, value);
  if (!recording) return target;
  if (auto* node = record_in_place<MulScalarBackward>(target, {&target})) node->factor = value.to_double();
  return target;
}

const Tensor& div_in_place(const Tensor& target, const Operand& divisor, const Tensor& other, const char* op) {
  LOCKSTEP_CHECK(
      !target.defined() || target.is_floating_point(),
      "[{}] true division gives floating-point results, which do not go into a {} tensor; convert the tensor "
      "with to() first",
      op, name(target.dtype()));
  const bool recording = begin_in_place(target, divisor, op);
  const Tensor a = recording && needs_grad(other) ? copy_contiguous(target) : Tensor();
  const Tensor b = recording && other.defined() ? value_before(other, target) : Tensor();
  write_in_place(BinaryOp::div, 1.0, target, divisor);
  if (!recording) return target;
  if (auto* node = record_in_place<DivBackward>(target, {&target, &other})) {
    node->save(a, b);
    node->scalar_b = divisor.scalar.to_double();
    node->form_a = Form(target);
    if (other.defined()) node->form_b = Form(other);
  }
  return target;
}

const Tensor& div_in_place(const Tensor& target, const Tensor& other, const char* op) {
  if (are_apart(target, other) && !target.device().is_cpu()) [[unlikely]]
    return div_in_place(target, beside(other, target), op);
  return div_in_place(target, other, other, op);
}

}  // namespace

const Tensor& Tensor::add_(const Tensor& other, double alpha) const {
  return add_in_place(*this, other, alpha, "add_");
}
const Tensor& Tensor::add_(Scalar value) const {
  return add_in_place(*this, value, 1.0, "add_");
}
const Tensor& Tensor::sub_(const Tensor& other, double alpha) const {
  return add_in_place(*this, other, -alpha, "sub_");
}
const Tensor& Tensor::sub_(Scalar value) const {
  return add_in_place(*this, value, -1.0, "sub_");
}
const Tensor& Tensor::mul_(const Tensor& other) const {
  return mul_in_place(*this, other, "mul_");
}
const Tensor& Tensor::mul_(Scalar value) const {
  return mul_in_place(*this, value, "mul_");
}
const Tensor& Tensor::div_(const Tensor& other) const {
  return div_in_place(*this, other, "div_");
}
const Tensor& Tensor::div_(Scalar value) const {
  return div_in_place(*this, value, Tensor(), "div_");
}

const Tensor& operator+=(const Tensor& a, const Tensor& b) {
  return add_in_place(a, b, 1.0, "+=");
}
const Tensor& operator+=(const Tensor& a, Scalar b) {
  return add_in_place(a, b, 1.0, "+=");
}
const Tensor& operator-=(const Tensor& a, const Tensor& b) {
  return add_in_place(a, b, -1.0, "-=");
}
const Tensor& operator-=(const Tensor& a, Scalar b) {
  return add_in_place(a, b, -1.0, "-=");
}
const Tensor& operator*=(const Tensor& a, const Tensor& b) {
  return mul_in_place(a, b, "*=");
}
const Tensor& operator*=(const Tensor& a, Scalar b) {
  return mul_in_place(a, b, "*=");
}
const Tensor& operator/=(const Tensor& a, const Tensor& b) {
  return div_in_place(a, b, "/=");
}
const Tensor& operator/=(const Tensor& a, Scalar b) {
  return div_in_place(a, b, Tensor(), "/=");
}

namespace {

void record_lerp(LerpBackward* node, const Tensor& a, const Tensor& b, double weight) {
  if (!node) return;
  node->a = Form(a);
  node->b = Form(b);
  node->weight = weight;
}

}  // namespace

Tensor lerp(const Tensor& a, const Tensor& b, double weight) {
  if (are_apart(a, b)) [[unlikely]]
    return lerp(beside(a, b), beside(b, a), weight);
  binary::check_operands(a, b, "lerp");
  if (!is_floating_point(binary::promote(a, b))) return lerp(a.to(kFloat32), b.to(kFloat32), weight);
  // From the end that is nearer.
  Tensor out = weight < 0.5 ? compute(BinaryOp::lerp, a, b, weight, "lerp")
                            : compute(BinaryOp::lerp, b, a, 1.0 - weight, "lerp");
  record_lerp(record<LerpBackward>(out, {&a, &b}), a, b, weight);
  return out;
}

const Tensor& Tensor::lerp_(const Tensor& end, double weight) const {
  if (are_apart(*this, end) && !device().is_cpu()) [[unlikely]]
    return lerp_(beside(end, *this), weight);
  binary::check_operands(*this, end, "lerp_");
  LOCKSTEP_CHECK(is_floating_point(), "[lerp_] expected a floating-point tensor, found {}; convert it with to() first",
                 name(dtype()));
  const bool recording = begin_in_place(*this, end, "lerp_");
  const DType compute = cpu::compute_dtype(binary::promote(*this, end));
  const Tensor source = without_overlap(end, *this);
  const bool forwards = weight < 0.5;
  const Tensor &from = forwards ? *this : source, &to = forwards ? source : *this;
  binary_kernel(from)(BinaryOp::lerp, forwards ? weight : 1.0 - weight, from, to, compute, *this);
  if (recording) record_lerp(record_in_place<LerpBackward>(*this, {this, &end}), *this, end, weight);
  return *this;
}

}  // namespace lockstep
