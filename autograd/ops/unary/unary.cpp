#include "lockstep/autograd/ops/unary/unary.h"

#include <cmath>
#include <limits>
#include <utility>

#include "lockstep/autograd/autocast.h"
#include "lockstep/autograd/linear_map.h"
#include "lockstep/autograd/ops/binary/binary_kernels.h"
#include "lockstep/autograd/ops/copy/copy.h"
#include "lockstep/autograd/ops/pool2d/max_pool2d_computation.h"
#include "lockstep/autograd/ops/unary/unary_computation.h"
#include "lockstep/autograd/ops/unary/unary_functors.h"
#include "lockstep/autograd/ops/unary/unary_kernels.h"
#include "lockstep/autograd/record.h"
#include "lockstep/core/channels_last.h"
#include "lockstep/core/check.h"
#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"

namespace lockstep {
namespace {

constexpr KernelTable<UnaryKernel> unary_kernel{"unary", unary_cpu, LOCKSTEP_CUDA_KERNEL(unary_cuda)};
constexpr KernelTable<UnaryBackwardKernel> unary_backward_kernel{"unary backward", unary_backward_cpu,
                                                                 LOCKSTEP_CUDA_KERNEL(unary_backward_cuda)};

struct Names {
  const char* op;
  const char* node;
};
/// In the order of UnaryOp.
constexpr Names kNames[] = {
#define LOCKSTEP_UNARY_OP(name, Functor) {#name, #Functor "Backward"},
    LOCKSTEP_UNARY_OPS(LOCKSTEP_UNARY_OP)
#undef LOCKSTEP_UNARY_OP
};

constexpr const Names& names_of(UnaryOp op) {
  return kNames[static_cast<std::size_t>(op)];
}

bool saves_output(UnaryOp op) {
  bool output = false;
  unary::visit<float>(op, [&]<typename F>() { output = F::kSaves == unary::Saves::output; });
  return output;
}

/// Their slope is the same whatever the input, which backward therefore need not keep: 1 of frac, 0 of steps.
bool has_one_slope(UnaryOp op) {
  return op == UnaryOp::frac || op == UnaryOp::sign || op == UnaryOp::floor || op == UnaryOp::ceil ||
         op == UnaryOp::round || op == UnaryOp::trunc;
}

class UnaryBackward final : public Node {
 public:
  const char* name() const override { return names_of(op).node; }
  bool is_elementwise() const override { return true; }
  TensorList apply(TensorList grads) override {
    Tensor grad = std::move(grads[0]);
    if (has_one_slope(op)) return {op == UnaryOp::frac ? grad : zeros_like(grad)};
    const Tensor& values = op == UnaryOp::neg ? grad : saved(0);
    if (op == UnaryOp::relu)
      if (Tensor pooled = relu_of_pooled_gradient(grad); pooled.defined()) return {pooled};
    grad = laid_out_like(grad, values);
    if (const Tensor incoming = channels_last_of(grad); incoming.defined()) {
      if (of_pending && edges()[0].input == 0)
        return {make_intrusive<ReluGradient>(incoming, to_channels_last(values), edges()[0].node->sequence())
                    ->add_result(grad.sizes(), options_of(grad))};
      const Tensor laid_out = empty_like(incoming);
      unary_backward_kernel(grad)(op, params, incoming, to_channels_last(values), laid_out);
      return {from_channels_last(laid_out)};
    }
    const Node* const next = edges()[0].node.get();
    if (Tensor later = elementwise_unary_gradient(op, params, grad, values, next && next->is_elementwise());
        later.defined())
      return {later};
    grad.storage()->settle();
    const bool sole_owner =
        grad.impl()->use_count() == 1 && grad.storage()->use_count() == 1 && grad.is_contiguous() && op != UnaryOp::neg;
    const Tensor out = sole_owner ? grad : empty_like(grad);
    unary_backward_kernel(grad)(op, params, grad, values, out);
    return {out};
  }

  TensorList apply_recorded(TensorList grads) override {
    if (op == UnaryOp::neg) return {-grads[0]};
    if (has_one_slope(op)) {
      const Tensor& grad = grads[0];
      return {flat_in(op == UnaryOp::frac ? grad : flat_in(zeros_like(grad), grad), edges()[0], grad.sizes())};
    }
    const Tensor values = saves_output(op) ? saved_output(0) : saved_input(0, 0);
    const Tensor grad = recorded_unary_gradient(op, params, grads[0], values);
    return grad.defined() ? TensorList{grad} : Node::apply_recorded(std::move(grads));
  }

  UnaryOp op = UnaryOp::neg;
  UnaryParams params;
  bool of_pending = false;  ///< a relu of a pending result that takes sums
};

/// Those that a kernel of another operation can end with.
bool joins(UnaryOp op) {
  return op == UnaryOp::relu;
}

Tensor run(UnaryOp op, const Tensor& x, DType dtype, UnaryParams params) {
  Tensor out;
  bool of_pending = false;
  if (const Computation* const before = joins(op) ? joinable(x) : nullptr) {
    of_pending = before->takes_sum(x.sizes());
    out = make_intrusive<UnaryComputation>(op, params, x)->add_result(x.sizes(), options_of(x));
  } else if (const Tensor laid_out = channels_last_of(x); laid_out.defined()) {
    const Tensor values = empty(laid_out.sizes(), {.dtype = dtype, .device = x.device()});
    unary_kernel(x)(op, params, laid_out, values);
    out = from_channels_last(values);
  } else if (out = elementwise_unary(op, params, x, dtype); !out.defined()) {
    out = empty(x.sizes(), {.dtype = dtype, .device = x.device()});
    unary_kernel(x)(op, params, x, out);
  }
  if (auto* node = record<UnaryBackward>(out, {&x})) {
    node->op = op;
    node->params = params;
    node->of_pending = of_pending;
    if (op != UnaryOp::neg && !has_one_slope(op)) node->save(saves_output(op) ? out : x);
  }
  return out;
}

// See Note [Autocast].
bool wants_float32(UnaryOp op) {
  switch (op) {
    case UnaryOp::exp:
    case UnaryOp::log:
    case UnaryOp::pow:
    case UnaryOp::square:
    case UnaryOp::cube:
    case UnaryOp::rsqrt:
    case UnaryOp::reciprocal:
    case UnaryOp::log1p:
    case UnaryOp::expm1:
    case UnaryOp::log2:
    case UnaryOp::log10:
    case UnaryOp::softplus:
    case UnaryOp::logsigmoid:
      return true;
    default:
      return false;
  }
}

Tensor run(UnaryOp op, const Tensor& x, UnaryParams params = {}) {
  if (autocast::is_active && wants_float32(op)) [[unlikely]]
    return autocast::in_full([&](const Tensor& t) { return run(op, t, params); }, x);
  LOCKSTEP_CHECK(x.defined(), "[{}] the tensor is undefined", names_of(op).op);
  const bool keeps = x.is_floating_point() || (unary::takes_integers(op) && x.dtype() != kBool);
  return run(op, x, keeps ? x.dtype() : kFloat32, params);
}

}  // namespace

void UnaryComputation::compute() {
  const Tensor& x = input(0);
  const Tensor out = empty_like(x);
  unary_kernel(x)(op_, params_, x, out);
  deliver(0, out);
}

Tensor UnaryComputation::continue_channels_last(const Tensor& values) {
  Tensor out = empty_like(values);
  unary_kernel(values)(op_, params_, values, out);
  return out;
}

void ReluGradient::compute() {
  deliver(0, copy_contiguous(in_order_of_channels(compute_channels_last({}))));
}

Tensor ReluGradient::compute_channels_last(std::span<Computation* const> links) {
  if (!links.empty()) return {};
  const Tensor& grad = input(0);
  Tensor out = empty_like(grad);
  unary_backward_kernel(grad)(UnaryOp::relu, UnaryParams(), grad, input(1), out);
  return out;
}

const char* profile_label(UnaryOp op) {
  return names_of(op).op;
}

Tensor exp(const Tensor& x) {
  return run(UnaryOp::exp, x);
}
Tensor log(const Tensor& x) {
  return run(UnaryOp::log, x);
}
Tensor sqrt(const Tensor& x) {
  return run(UnaryOp::sqrt, x);
}
Tensor rsqrt(const Tensor& x) {
  return run(UnaryOp::rsqrt, x);
}
Tensor reciprocal(const Tensor& x) {
  return run(UnaryOp::reciprocal, x);
}
Tensor square(const Tensor& x) {
  return pow(x, 2.0);
}
Tensor abs(const Tensor& x) {
  return run(UnaryOp::abs, x);
}
Tensor neg(const Tensor& x) {
  LOCKSTEP_CHECK(!x.defined() || x.dtype() != kBool, "[neg] is not defined for bool tensors; use eq(x, false)");
  return run(UnaryOp::neg, x);
}
Tensor tanh(const Tensor& x) {
  return run(UnaryOp::tanh, x);
}
Tensor sigmoid(const Tensor& x) {
  return run(UnaryOp::sigmoid, x);
}
Tensor relu(const Tensor& x) {
  return run(UnaryOp::relu, x);
}
Tensor leaky_relu(const Tensor& x, double negative_slope) {
  return run(UnaryOp::leaky_relu, x, {.a = negative_slope});
}
Tensor silu(const Tensor& x) {
  return run(UnaryOp::silu, x);
}
Tensor sin(const Tensor& x) {
  return run(UnaryOp::sin, x);
}
Tensor cos(const Tensor& x) {
  return run(UnaryOp::cos, x);
}
Tensor gelu(const Tensor& x, GeluMode mode) {
  return run(mode == GeluMode::exact ? UnaryOp::gelu : UnaryOp::gelu_tanh, x);
}
Tensor gelu(const Tensor& x, std::string_view approximate) {
  LOCKSTEP_CHECK(approximate == "none" || approximate == "tanh", "[gelu] expected \"none\" or \"tanh\", found \"{}\"",
                 approximate);
  return gelu(x, approximate == "tanh" ? GeluMode::tanh : GeluMode::exact);
}

Tensor sign(const Tensor& x) {
  if (x.defined() && x.dtype() == kBool) return x.clone();
  return run(UnaryOp::sign, x);
}
Tensor floor(const Tensor& x) {
  return run(UnaryOp::floor, x);
}
Tensor ceil(const Tensor& x) {
  return run(UnaryOp::ceil, x);
}
Tensor round(const Tensor& x) {
  return run(UnaryOp::round, x);
}
Tensor trunc(const Tensor& x) {
  return run(UnaryOp::trunc, x);
}
Tensor logsigmoid(const Tensor& x) {
  return run(UnaryOp::logsigmoid, x);
}
Tensor softsign(const Tensor& x) {
  return run(UnaryOp::softsign, x);
}
Tensor hardswish(const Tensor& x) {
  return run(UnaryOp::hardswish, x);
}
Tensor hardsigmoid(const Tensor& x) {
  return run(UnaryOp::hardsigmoid, x);
}
Tensor mish(const Tensor& x) {
  return run(UnaryOp::mish, x);
}
Tensor erf(const Tensor& x) {
  return run(UnaryOp::erf, x);
}
Tensor log1p(const Tensor& x) {
  return run(UnaryOp::log1p, x);
}
Tensor expm1(const Tensor& x) {
  return run(UnaryOp::expm1, x);
}
Tensor log2(const Tensor& x) {
  return run(UnaryOp::log2, x);
}
Tensor log10(const Tensor& x) {
  return run(UnaryOp::log10, x);
}
Tensor tan(const Tensor& x) {
  return run(UnaryOp::tan, x);
}
Tensor sinh(const Tensor& x) {
  return run(UnaryOp::sinh, x);
}
Tensor cosh(const Tensor& x) {
  return run(UnaryOp::cosh, x);
}
Tensor atan(const Tensor& x) {
  return run(UnaryOp::atan, x);
}
Tensor asin(const Tensor& x) {
  return run(UnaryOp::asin, x);
}
Tensor acos(const Tensor& x) {
  return run(UnaryOp::acos, x);
}
Tensor asinh(const Tensor& x) {
  return run(UnaryOp::asinh, x);
}
Tensor acosh(const Tensor& x) {
  return run(UnaryOp::acosh, x);
}
Tensor atanh(const Tensor& x) {
  return run(UnaryOp::atanh, x);
}
Tensor lgamma(const Tensor& x) {
  return run(UnaryOp::lgamma, x);
}
Tensor digamma(const Tensor& x) {
  return run(UnaryOp::digamma, x);
}
Tensor erfinv(const Tensor& y) {
  return run(UnaryOp::erfinv, y);
}
Tensor erfc(const Tensor& x) {
  return run(UnaryOp::erfc, x);
}
Tensor frac(const Tensor& x) {
  LOCKSTEP_CHECK(x.defined() && x.is_floating_point(), "[frac] expected a floating-point tensor, found {}",
                 x.defined() ? name(x.dtype()) : "an undefined one");
  return run(UnaryOp::frac, x);
}
Tensor nan_to_num(const Tensor& x, double nan, std::optional<double> posinf, std::optional<double> neginf) {
  LOCKSTEP_CHECK(x.defined(), "[nan_to_num] the tensor is undefined");
  if (!x.is_floating_point()) return clone(x);
  const double largest = x.dtype() == kFloat64    ? std::numeric_limits<double>::max()
                         : x.dtype() == kFloat16  ? 65504.0
                         : x.dtype() == kBFloat16 ? 0x1.fep127
                                                  : static_cast<double>(std::numeric_limits<float>::max());
  return run(UnaryOp::nan_to_num, x, {.a = nan, .b = posinf.value_or(largest), .c = neginf.value_or(-largest)});
}
Tensor hardtanh(const Tensor& x, double min, double max) {
  LOCKSTEP_CHECK(min <= max, "[hardtanh] expected min <= max, found {} and {}", min, max);
  if (x.defined() && !x.is_floating_point() && x.dtype() != kBool) {  // integers stay what they are
    for (const double bound : {min, max}) check_in_range(bound, x.dtype(), "hardtanh");
    return clamp(x, std::trunc(min), std::trunc(max));
  }
  return run(UnaryOp::hardtanh, x, {.a = min, .b = max});
}
Tensor relu6(const Tensor& x) {
  return hardtanh(x, 0.0, 6.0);
}
Tensor elu(const Tensor& x, double alpha) {
  return run(UnaryOp::elu, x, {.a = alpha, .b = 1.0});
}
Tensor selu(const Tensor& x) {
  return run(UnaryOp::elu, x, {.a = 1.6732632423543772, .b = 1.0507009873554805});
}
Tensor celu(const Tensor& x, double alpha) {
  LOCKSTEP_CHECK(alpha != 0.0, "[celu] expected an alpha other than 0");
  return run(UnaryOp::celu, x, {.a = alpha});
}
Tensor softplus(const Tensor& x, double beta, double threshold) {
  return run(UnaryOp::softplus, x, {.a = beta, .b = threshold});
}

Tensor pow(const Tensor& x, double exponent) {
  LOCKSTEP_CHECK(x.defined(), "[pow] the tensor is undefined");
  if (!x.is_floating_point() && Scalar(exponent).is_whole()) {
    LOCKSTEP_CHECK(exponent >= 0.0,
                   "[pow] an integer tensor has no integer power of {}; convert the tensor with to(kFloat32)",
                   exponent);
    return binary_values(BinaryOp::pow, x, Scalar(static_cast<std::int64_t>(exponent)));
  }
  if (exponent == 2.0) return run(UnaryOp::square, x);
  if (exponent == 3.0) return run(UnaryOp::cube, x);
  if (exponent == 0.5) return run(UnaryOp::sqrt, x);
  if (exponent == -0.5) return run(UnaryOp::rsqrt, x);
  if (exponent == -1.0) return run(UnaryOp::reciprocal, x);
  return run(UnaryOp::pow, x, {.a = exponent});
}

Tensor clamp(const Tensor& x, std::optional<double> min, std::optional<double> max) {
  LOCKSTEP_CHECK(x.defined(), "[clamp] the tensor is undefined");
  LOCKSTEP_CHECK(min || max, "[clamp] expected at least one bound");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const UnaryParams params{.a = min.value_or(-kInfinity), .b = max.value_or(kInfinity)};
  if (x.is_floating_point()) return run(UnaryOp::clamp, x, params);
  const auto is_whole = [](double bound) { return std::isfinite(bound) && std::trunc(bound) == bound; };
  if ((min && !is_whole(*min)) || (max && !is_whole(*max))) return run(UnaryOp::clamp, x, kFloat32, params);
  const DType dtype = x.dtype() == kBool ? kInt64 : x.dtype();
  for (const std::optional<double>& bound : {min, max})
    if (bound) check_in_range(*bound, dtype, "clamp");
  return run(UnaryOp::clamp, x, dtype, params);
}

}  // namespace lockstep
