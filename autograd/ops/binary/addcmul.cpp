// x + value a b, and x + value a / b.

#include <algorithm>
#include <array>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/support/in_place.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/check.h"
#include "lockstep/core/cpu/row_io.h"
#include "lockstep/core/elementwise.h"
#include "lockstep/core/factories.h"
#include "lockstep/core/vector_math.h"

namespace lockstep {
namespace {

/// The term's rows meet x in C (Note [Compute types]), rounded as separate operations of C are.
template <typename C>
void add_rows(BinaryOp op, const Tensor& x, const Tensor& a, const Tensor& b, double value, const Tensor& out) {
  using Source = cpu::RowSource<C>;
  const auto source_of = [](const Tensor& t) { return Source{t.raw_data(), t.dtype()}; };
  const Source sources[] = {source_of(x), source_of(a), source_of(b)};
  const cpu::RowTarget<C> target{out.raw_data(), out.dtype()};
  const C factor = static_cast<C>(value);
  const auto row = [&](const std::array<std::int64_t, 4>& offset, const std::array<std::int64_t, 4>& stride,
                       std::int64_t length) {
    C buffers[4][cpu::kRowChunk];
    for (std::int64_t i = 0; i < length; i += cpu::kRowChunk) {
      const std::int64_t count = std::min(cpu::kRowChunk, length - i);
      const C* values[3];
      for (std::size_t n = 0; n < 3; ++n)
        values[n] = sources[n].row(offset[n] + i * stride[n], stride[n], count, buffers[n]);
      const C *const from = values[0], *const first = values[1], *const second = values[2];
      const std::int64_t at = offset[3] + i * stride[3];
      C* const to = target.row(at, stride[3], buffers[3]);
      const auto add_each = [&](auto term) {
        LOCKSTEP_VECTORIZE
        for (std::int64_t k = 0; k < count; ++k) to[k] = from[k] + factor * term(first[k], second[k]);
      };
      if (op == BinaryOp::mul)
        add_each([](C p, C q) { return p * q; });
      else
        add_each([](C p, C q) { return p / q; });
      target.finish(to, at, stride[3], count);
    }
  };
  cpu::for_each_row(cpu::plan_loop<4>(out.sizes(), {&x, &a, &b, &out}), row);
}

/// Writes x + value op(a, b) to `out`. Tensors on the CPU, of one floating-point dtype, which broadcast to out's shape.
void add_to(BinaryOp op, const Tensor& x, const Tensor& a, const Tensor& b, double value, const Tensor& out) {
  if (out.numel() == 0) return;
  (out.dtype() == kFloat64 ? add_rows<double> : add_rows<float>)(op, x, a, b, value, out);
}

bool on_one_cpu(const Tensor& x, const Tensor& a, const Tensor& b) {
  return x.device().is_cpu() && a.device() == x.device() && b.device() == x.device();
}

bool records(const Tensor& x, const Tensor& a, const Tensor& b) {
  return GradMode::enabled() && (x.requires_grad() || a.requires_grad() || b.requires_grad());
}

Shape sizes_of_all(const Tensor& x, const Tensor& a, const Tensor& b, const char* name) {
  return broadcast_shapes(x.sizes(), broadcast_shapes(a.sizes(), b.sizes(), name), name);
}

Tensor with_term(BinaryOp op, const Tensor& x, const Tensor& a, const Tensor& b, double value, const char* name) {
  LOCKSTEP_CHECK(x.defined() && a.defined() && b.defined(), "[{}] a tensor is undefined", name);
  const DType dtype = binary::promote({&x, &a, &b});
  const Tensor first = a.to(dtype), second = b.to(dtype);
  // Half types are computed in float32 and rounded once.
  if (is_floating_point(dtype) && element_size(dtype) == 2) {
    if (on_one_cpu(x, a, b) && !records(x, a, b)) {
      const Tensor out = empty(sizes_of_all(x, a, b, name), {.dtype = dtype, .device = x.device()});
      add_to(op, x.to(dtype), first, second, value, out);
      return out;
    }
    const auto wide = [](const Tensor& t) { return t.to(kFloat32); };
    return with_term(op, wide(x.to(dtype)), wide(first), wide(second), value, name).to(dtype);
  }
  return add(x, op == BinaryOp::mul ? mul(first, second) : div(first, second), value);
}

}  // namespace

bool binary::add_term_in_place(BinaryOp op, const Tensor& x, const Tensor& a, const Tensor& b, double value,
                               const char* name) {
  if (!x.defined() || !a.defined() || !b.defined()) return false;
  if (!x.is_floating_point() || !on_one_cpu(x, a, b) || records(x, a, b)) return false;
  if (promote({&x, &a, &b}) != x.dtype() || sizes_of_all(x, a, b, name) != x.sizes()) return false;
  check_in_place(x, false, name);
  const NoGradGuard values_only;
  const auto operand = [&](const Tensor& t) { return without_overlap(t.to(x.dtype()), x); };
  add_to(op, x, operand(a), operand(b), value, x);
  return true;
}

Tensor addcmul(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return with_term(BinaryOp::mul, x, a, b, value, "addcmul");
}

Tensor addcdiv(const Tensor& x, const Tensor& a, const Tensor& b, double value) {
  return with_term(BinaryOp::div, x, a, b, value, "addcdiv");
}

}  // namespace lockstep
