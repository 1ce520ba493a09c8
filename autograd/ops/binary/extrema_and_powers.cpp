#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/binary/operands.h"
#include "lockstep/autograd/ops/isfinite/isfinite.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/factories.h"

namespace lockstep {

using binary::compute;
using binary::Form;

namespace {

/// Operations whose gradients are the incoming one times a factor of both operands.
class FactorBackward : public Node {
 public:
  TensorList apply(TensorList grads) override {
    const Tensor& x = saved(0);
    const Tensor& y = saved(1);
    TensorList results(2);
    if (needs_grad(0)) results[0] = form_a.fit(product(), grads[0], factor_a(x, y));
    if (needs_grad(1)) results[1] = form_b.fit(product(), grads[0], factor_b(x, y));
    return results;
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0), y = saved_input(1, 1);
    TensorList results(2);
    if (needs_grad(0)) results[0] = form_a.fit_recorded(times(grads[0], slope_a(x, y)));
    if (needs_grad(1)) results[1] = form_b.fit_recorded(times(grads[0], slope_b(x, y)));
    return results;
  }
  virtual Tensor factor_a(const Tensor& x, const Tensor& y) const = 0;
  virtual Tensor factor_b(const Tensor& x, const Tensor& y) const = 0;
  /// The factors as recorded operations; flat unless overridden.
  virtual Tensor slope_a(const Tensor& x, const Tensor& y) const {
    return flat_in(flat_in(factor_a(x.detach(), y.detach()), x), y);
  }
  virtual Tensor slope_b(const Tensor& x, const Tensor& y) const {
    return flat_in(flat_in(factor_b(x.detach(), y.detach()), x), y);
  }

  Form form_a, form_b;

 private:
  /// How the incoming gradient meets the factors.
  virtual BinaryOp product() const { return BinaryOp::mul; }
  Tensor times(const Tensor& grad, const Tensor& slope) const {
    return product() == BinaryOp::mul ? grad * slope : where(slope.detach() == 0.0, 0.0, grad * slope);
  }
};

/// The factors select whose gradient it is.
class SelectingBackward : public FactorBackward {
  BinaryOp product() const final { return BinaryOp::selected; }
};

class MaximumBackward final : public SelectingBackward {
 public:
  const char* name() const override { return "MaximumBackward"; }
  Tensor factor_a(const Tensor& x, const Tensor& y) const override {
    return binary::compute_wide(BinaryOp::greater_share, x, y);
  }
  Tensor factor_b(const Tensor& x, const Tensor& y) const override {
    return binary::compute_wide(BinaryOp::greater_share, y, x);
  }
};

class MinimumBackward final : public SelectingBackward {
 public:
  const char* name() const override { return "MinimumBackward"; }
  Tensor factor_a(const Tensor& x, const Tensor& y) const override {
    return binary::compute_wide(BinaryOp::greater_share, y, x);
  }
  Tensor factor_b(const Tensor& x, const Tensor& y) const override {
    return binary::compute_wide(BinaryOp::greater_share, x, y);
  }
};

class PowBackward final : public FactorBackward {
 public:
  const char* name() const override { return "PowBackward"; }
  Tensor factor_a(const Tensor& x, const Tensor& y) const override {
    return binary::compute_wide(BinaryOp::pow_by_base, x, y);
  }
  Tensor factor_b(const Tensor& x, const Tensor& y) const override {
    return binary::compute_wide(BinaryOp::pow_by_exponent, x, y);
  }
  Tensor slope_a(const Tensor& x, const Tensor& y) const override {
    return where(y == 0.0, 0.0, y * pow(x, where(y == 0.0, 1.0, y) - 1.0));
  }
  Tensor slope_b(const Tensor& x, const Tensor& y) const override {
    const Tensor flat = (x == 0.0) * (y >= 0.0);
    return where(flat, 0.0, pow(x, y) * log(where(flat, 1.0, x)));
  }
};

class Atan2Backward final : public FactorBackward {
 public:
  const char* name() const override { return "Atan2Backward"; }
  Tensor factor_a(const Tensor& y, const Tensor& x) const override { return over_square(y, x, x); }
  Tensor factor_b(const Tensor& y, const Tensor& x) const override { return over_square(y, x, -y); }
  Tensor slope_a(const Tensor& y, const Tensor& x) const override { return over(x * x + y * y, x); }
  Tensor slope_b(const Tensor& y, const Tensor& x) const override { return over(x * x + y * y, -y); }

 private:
  /// numerator / (x^2 + y^2); 0 at the origin.
  static Tensor over_square(const Tensor& y, const Tensor& x, const Tensor& numerator) {
    const Tensor xs = binary::compute_wide(BinaryOp::mul, x, x), ys = binary::compute_wide(BinaryOp::mul, y, y);
    return over(xs + ys, numerator);
  }
  static Tensor over(const Tensor& square, const Tensor& numerator) {
    return where(square == 0.0, 0.0, numerator * (1.0 / where(square == 0.0, 1.0, square)));
  }
};

class HypotBackward final : public FactorBackward {
 public:
  const char* name() const override { return "HypotBackward"; }
  Tensor factor_a(const Tensor& x, const Tensor& y) const override { return share(x, y, x); }
  Tensor factor_b(const Tensor& x, const Tensor& y) const override { return share(x, y, y); }
  Tensor slope_a(const Tensor& x, const Tensor& y) const override { return x / hypot(x, y); }
  Tensor slope_b(const Tensor& x, const Tensor& y) const override { return y / hypot(x, y); }

 private:
  /// part / hypot(x, y).
  static Tensor share(const Tensor& x, const Tensor& y, const Tensor& part) {
    return binary::compute_wide(BinaryOp::div, part, binary::compute_wide(BinaryOp::hypot, x, y));
  }
};

class LogAddExpBackward final : public FactorBackward {
 public:
  const char* name() const override { return "LogAddExpBackward"; }
  Tensor factor_a(const Tensor& x, const Tensor& y) const override {
    return binary::compute_wide(BinaryOp::exp_share, x, y);
  }
  Tensor factor_b(const Tensor& x, const Tensor& y) const override {
    return binary::compute_wide(BinaryOp::exp_share, y, x);
  }
  Tensor slope_a(const Tensor& x, const Tensor& y) const override { return sigmoid(difference(x, y)); }
  Tensor slope_b(const Tensor& x, const Tensor& y) const override { return sigmoid(difference(y, x)); }

 private:
  /// x - y; equal ones have no difference, infinite ones included.
  static Tensor difference(const Tensor& x, const Tensor& y) {
    const Tensor infinite = logical_and(x == y, isinf(x));
    return where(infinite, 0.0, where(infinite, 0.0, x) - where(infinite, 0.0, y));
  }
};

class PowOfScalarBackward final : public Node {
 public:
  const char* name() const override { return "PowOfScalarBackward"; }
  TensorList apply(TensorList grads) override {
    const Tensor factor = binary_values(BinaryOp::pow_by_exponent, base, saved(0));
    return {binary_values(BinaryOp::mul, grads[0], factor)};
  }
  TensorList apply_recorded(TensorList grads) override {
    const Tensor x = saved_input(0, 0), slope = pow(base, x) * log(full({}, base, options_of(x)));
    return {grads[0] * (base == 0.0 ? where(x >= 0.0, 0.0, slope) : slope)};
  }

  double base = 1.0;
};

template <typename N>
Tensor with_factors(BinaryOp op, const Tensor& a, const Tensor& b, const char* name) {
  if (binary::are_apart(a, b)) [[unlikely]]
    return with_factors<N>(op, binary::beside(a, b), binary::beside(b, a), name);
  Tensor out = compute(op, a, b, 1.0, name);
  if (auto* node = record<N>(out, {&a, &b})) {
    node->save(a, b);
    node->form_a = Form(a);
    node->form_b = Form(b);
  }
  return out;
}

}  // namespace

Tensor maximum(const Tensor& a, const Tensor& b) {
  return with_factors<MaximumBackward>(BinaryOp::maximum, a, b, "maximum");
}

Tensor minimum(const Tensor& a, const Tensor& b) {
  return with_factors<MinimumBackward>(BinaryOp::minimum, a, b, "minimum");
}

namespace {

/// `value` as a tensor without dimensions, of the dtype that it makes beside `like`.
Tensor number_beside(const Tensor& like, Scalar value, const char* op) {
  binary::check_operands(like, value, op);
  return scalar_tensor(value, {.dtype = result_dtype(like.dtype(), value), .device = like.device()});
}

}  // namespace

Tensor maximum(const Tensor& a, Scalar b) {
  return maximum(a, number_beside(a, b, "maximum"));
}

Tensor minimum(const Tensor& a, Scalar b) {
  return minimum(a, number_beside(a, b, "minimum"));
}

Tensor pow(const Tensor& a, const Tensor& b) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([](const auto&... t) { return pow(t...); }, a, b);
  return with_factors<PowBackward>(BinaryOp::pow, a, b, "pow");
}

Tensor atan2(const Tensor& a, const Tensor& b) {
  if (binary::are_apart(a, b)) [[unlikely]]
    return atan2(binary::beside(a, b), binary::beside(b, a));
  binary::check_operands(a, b, "atan2");
  if (!is_floating_point(binary::promote(a, b))) return atan2(a.to(kFloat32), b.to(kFloat32));
  return with_factors<Atan2Backward>(BinaryOp::atan2, a, b, "atan2");
}

Tensor hypot(const Tensor& a, const Tensor& b) {
  if (binary::are_apart(a, b)) [[unlikely]]
    return hypot(binary::beside(a, b), binary::beside(b, a));
  binary::check_operands(a, b, "hypot");
  if (!is_floating_point(binary::promote(a, b))) return hypot(a.to(kFloat32), b.to(kFloat32));
  return with_factors<HypotBackward>(BinaryOp::hypot, a, b, "hypot");
}

Tensor logaddexp(const Tensor& a, const Tensor& b) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([](const auto&... t) { return logaddexp(t...); }, a, b);
  if (binary::are_apart(a, b)) [[unlikely]]
    return logaddexp(binary::beside(a, b), binary::beside(b, a));
  binary::check_operands(a, b, "logaddexp");
  if (!is_floating_point(binary::promote(a, b))) return logaddexp(a.to(kFloat32), b.to(kFloat32));
  return with_factors<LogAddExpBackward>(BinaryOp::log_add_exp, a, b, "logaddexp");
}

Tensor pow(Scalar a, const Tensor& b) {
  if (autocast::is_active) [[unlikely]]
    return autocast::in_full([a](const Tensor& t) { return pow(a, t); }, b);
  Tensor out = compute(BinaryOp::pow, a, b, 1.0, "pow");
  if (auto* node = record<PowOfScalarBackward>(out, {&b})) {
    node->base = a.to_double();
    node->save(b);
  }
  return out;
}

}  // namespace lockstep
