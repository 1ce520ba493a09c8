// Functions of one and two tensors, element by element.

#include "lockstep/autograd/ops.h"
#include "tests/samples/call.h"

namespace lockstep::testing {
namespace {

/// op(input, other) where either operand may be a number.
template <typename Op>
Results two(Call& c, Op op) {
  const bool first = c.is_tensor(0, "input"), second = c.is_tensor(1, "other");
  if constexpr (requires(Scalar s, Tensor t) { op(s, t); })
    if (!first && second) return op(c.number(0, "input"), c.tensor(1, "other"));
  if constexpr (requires(Scalar s, Tensor t) { op(t, s); })
    if (first && !second) return op(c.tensor(0, "input"), c.number(1, "other"));
  return op(c.tensor(0, "input"), c.tensor(1, "other"));
}

/// one(a, b) without alpha, else op(a, b, alpha).
template <typename One, typename Op>
Results with_alpha(Call& c, One one, Op op) {
  const double alpha = c.real(-1, "alpha", 1.0);
  if (alpha == 1.0) return two(c, one);
  return op(c.tensor(0, "input"), c.tensor(1, "other"), alpha);
}

GeluMode gelu_mode(const std::string& word) {
  if (word != "none" && word != "tanh") throw NotExpressible{"there is no GeluMode " + word};
  return word == "tanh" ? GeluMode::tanh : GeluMode::exact;
}

Results rounded(Call& c) {
  const RoundingMode mode = c.text(-1, "rounding_mode", "") == "trunc" ? RoundingMode::trunc : RoundingMode::floor;
  return two(c, [mode](const auto& a, const auto& b) -> decltype(div(a, b, mode)) { return div(a, b, mode); });
}

Results clamped(Call& c, const char* min, int min_position, const char* max, int max_position) {
  if ((min && c.is_tensor(min_position, min)) || (max && c.is_tensor(max_position, max)))
    return clamp(c.tensor(0, "input"), min ? c.tensor_or_none(min_position, min) : Tensor(),
                 max ? c.tensor_or_none(max_position, max) : Tensor());
  return clamp(c.tensor(0, "input"), min ? c.real_or_none(min_position, min) : std::nullopt,
               max ? c.real_or_none(max_position, max) : std::nullopt);
}

}  // namespace

#define LOCKSTEP_ONE(name, expression)       \
  {                                          \
    name, [](Call& c) -> Results {           \
      const Tensor x = c.tensor(0, "input"); \
      return expression;                     \
    }                                        \
  }
#define LOCKSTEP_TWO(name, expression)                                                                \
  {                                                                                                   \
    name, [](Call& c) -> Results {                                                                    \
      return two(c, [](const auto& a, const auto& b) -> decltype(expression) { return expression; }); \
    }                                                                                                 \
  }

std::vector<Operation> elementwise_calls() {
  return {
      LOCKSTEP_ONE("abs", abs(x)),
      LOCKSTEP_ONE("exp", exp(x)),
      LOCKSTEP_ONE("log", log(x)),
      LOCKSTEP_ONE("sqrt", sqrt(x)),
      LOCKSTEP_ONE("rsqrt", rsqrt(x)),
      LOCKSTEP_ONE("reciprocal", reciprocal(x)),
      LOCKSTEP_ONE("square", square(x)),
      LOCKSTEP_ONE("neg", -x),
      LOCKSTEP_ONE("tanh", tanh(x)),
      LOCKSTEP_ONE("sigmoid", sigmoid(x)),
      LOCKSTEP_ONE("sin", sin(x)),
      LOCKSTEP_ONE("cos", cos(x)),
      LOCKSTEP_ONE("sign", sign(x)),
      LOCKSTEP_ONE("floor", floor(x)),
      LOCKSTEP_ONE("ceil", ceil(x)),
      LOCKSTEP_ONE("trunc", trunc(x)),
      LOCKSTEP_ONE("erf", erf(x)),
      LOCKSTEP_ONE("log1p", log1p(x)),
      LOCKSTEP_ONE("expm1", expm1(x)),
      LOCKSTEP_ONE("log2", log2(x)),
      LOCKSTEP_ONE("log10", log10(x)),
      LOCKSTEP_ONE("tan", tan(x)),
      LOCKSTEP_ONE("sinh", sinh(x)),
      LOCKSTEP_ONE("cosh", cosh(x)),
      LOCKSTEP_ONE("atan", atan(x)),
      LOCKSTEP_ONE("asin", asin(x)),
      LOCKSTEP_ONE("acos", acos(x)),
      LOCKSTEP_ONE("asinh", asinh(x)),
      LOCKSTEP_ONE("acosh", acosh(x)),
      LOCKSTEP_ONE("atanh", atanh(x)),
      LOCKSTEP_ONE("lgamma", lgamma(x)),
      LOCKSTEP_ONE("digamma", digamma(x)),
      LOCKSTEP_ONE("erfinv", erfinv(x)),
      LOCKSTEP_ONE("erfc", erfc(x)),
      LOCKSTEP_ONE("exp2", exp2(x)),
      LOCKSTEP_ONE("frac", frac(x)),
      LOCKSTEP_ONE("logit", logit(x, c.real_or_none(1, "eps"))),
      LOCKSTEP_ONE("nan_to_num",
                   nan_to_num(x, c.real(1, "nan", 0.0), c.real_or_none(2, "posinf"), c.real_or_none(3, "neginf"))),
      LOCKSTEP_ONE("nn.functional.threshold", threshold(x, c.real(1, "threshold", 0.0), c.real(2, "value", 0.0))),
      LOCKSTEP_ONE("nn.functional.tanhshrink", tanhshrink(x)),
      LOCKSTEP_ONE("nn.functional.softshrink", softshrink(x, c.real(1, "lambd", 0.5))),
      LOCKSTEP_ONE("nn.functional.hardshrink", hardshrink(x, c.real(1, "lambd", 0.5))),
      LOCKSTEP_ONE("nn.functional.glu", glu(x, c.integer(1, "dim", -1))),
      LOCKSTEP_ONE("nn.functional.prelu", prelu(x, c.tensor(1, "weight"))),
      LOCKSTEP_TWO("atan2", atan2(a, b)),
      LOCKSTEP_TWO("hypot", hypot(a, b)),
      LOCKSTEP_TWO("fmod", fmod(a, b)),
      LOCKSTEP_TWO("copysign", copysign(a, b)),
      LOCKSTEP_ONE("heaviside", heaviside(x, c.tensor(1, "values"))),
      LOCKSTEP_ONE("bitwise_not", bitwise_not(x)),
      LOCKSTEP_TWO("bitwise_and", bitwise_and(a, b)),
      LOCKSTEP_TWO("bitwise_or", bitwise_or(a, b)),
      LOCKSTEP_TWO("bitwise_xor", bitwise_xor(a, b)),
      LOCKSTEP_TWO("bitwise_left_shift", bitwise_left_shift(a, b)),
      LOCKSTEP_TWO("bitwise_right_shift", bitwise_right_shift(a, b)),
      LOCKSTEP_TWO("xlogy", xlogy(a, b)),
      LOCKSTEP_TWO("logaddexp", logaddexp(a, b)),
      {"isclose",
       [](Call& c) -> Results {
         return isclose(c.tensor(0, "input"), c.tensor(1, "other"), c.real(2, "rtol", 1e-5), c.real(3, "atol", 1e-8),
                        c.flag(4, "equal_nan", false));
       }},
      {"lerp",
       [](Call& c) -> Results {
         const Tensor a = c.tensor(0, "input"), b = c.tensor(1, "end");
         return c.is_tensor(2, "weight") ? lerp(a, b, c.tensor(2, "weight")) : lerp(a, b, c.real(2, "weight", 0.0));
       }},
      {"addcmul",
       [](Call& c) -> Results {
         return addcmul(c.tensor(0, "input"), c.tensor(1, "a"), c.tensor(2, "b"), c.real(-1, "value", 1.0));
       }},
      {"addcdiv",
       [](Call& c) -> Results {
         return addcdiv(c.tensor(0, "input"), c.tensor(1, "a"), c.tensor(2, "b"), c.real(-1, "value", 1.0));
       }},
      LOCKSTEP_ONE("logical_not", logical_not(x)),
      LOCKSTEP_ONE("nn.functional.selu", selu(x)),
      LOCKSTEP_ONE("nn.functional.logsigmoid", logsigmoid(x)),
      LOCKSTEP_ONE("nn.functional.softsign", softsign(x)),
      LOCKSTEP_ONE("nn.functional.hardswish", hardswish(x)),
      LOCKSTEP_ONE("nn.functional.hardsigmoid", hardsigmoid(x)),
      LOCKSTEP_ONE("nn.functional.relu6", relu6(x)),
      LOCKSTEP_ONE("nn.functional.mish", mish(x)),
      LOCKSTEP_ONE("round", round(x)),
      LOCKSTEP_ONE("nn.functional.elu", elu(x, c.real(1, "alpha", 1.0))),
      LOCKSTEP_ONE("nn.functional.celu", celu(x, c.real(1, "alpha", 1.0))),
      LOCKSTEP_ONE("nn.functional.softplus", softplus(x, c.real(1, "beta", 1.0), c.real(2, "threshold", 20.0))),
      LOCKSTEP_ONE("nn.functional.hardtanh", hardtanh(x, c.real(1, "min_val", -1.0), c.real(2, "max_val", 1.0))),
      LOCKSTEP_TWO("remainder", remainder(a, b)),
      LOCKSTEP_TWO("logical_and", logical_and(a, b)),
      LOCKSTEP_TWO("logical_or", logical_or(a, b)),
      LOCKSTEP_TWO("logical_xor", logical_xor(a, b)),
      LOCKSTEP_ONE("isnan", isnan(x)),
      LOCKSTEP_ONE("isinf", isinf(x)),
      LOCKSTEP_ONE("isfinite", isfinite(x)),
      LOCKSTEP_ONE("nn.functional.relu", relu(x)),
      LOCKSTEP_ONE("nn.functional.silu", silu(x)),
      LOCKSTEP_ONE("nn.functional.leaky_relu", leaky_relu(x, c.real(1, "negative_slope", 0.01))),
      LOCKSTEP_ONE("nn.functional.gelu", gelu(x, gelu_mode(c.text(-1, "approximate", "none")))),
      {"clamp", [](Call& c) { return clamped(c, "min", 1, "max", 2); }},
      {"clamp_min", [](Call& c) { return clamped(c, "min", 1, nullptr, 0); }},
      {"clamp_max", [](Call& c) { return clamped(c, nullptr, 0, "max", 1); }},
      {"pow",
       [](Call& c) -> Results {
         if (c.is_tensor(0, "input") && c.is_tensor(1, "exponent"))
           return pow(c.tensor(0, "input"), c.tensor(1, "exponent"));
         if (c.is_tensor(0, "input")) return pow(c.tensor(0, "input"), c.real(1, "exponent", 1.0));
         return pow(c.number(0, "input"), c.tensor(1, "exponent"));
       }},
      {"__rpow__",
       [](Call& c) -> Results {
         if (!c.is_tensor(0, "input")) return pow(c.tensor(1, "other"), c.real(0, "input", 1.0));
         if (c.is_tensor(1, "other")) return pow(c.tensor(1, "other"), c.tensor(0, "input"));
         return pow(c.number(1, "other"), c.tensor(0, "input"));
       }},
      {"add",
       [](Call& c) {
         return with_alpha(
             c, [](const auto& a, const auto& b) -> decltype(a + b) { return a + b; },
             [](const Tensor& a, const Tensor& b, double alpha) { return add(a, b, alpha); });
       }},
      {"sub",
       [](Call& c) {
         return with_alpha(
             c, [](const auto& a, const auto& b) -> decltype(a - b) { return a - b; },
             [](const Tensor& a, const Tensor& b, double alpha) { return sub(a, b, alpha); });
       }},
      {"rsub",
       [](Call& c) {
         return with_alpha(
             c, [](const auto& a, const auto& b) -> decltype(b - a) { return b - a; },
             [](const Tensor& a, const Tensor& b, double alpha) { return sub(b, a, alpha); });
       }},
      LOCKSTEP_TWO("mul", a * b),
      LOCKSTEP_TWO("div.no_rounding_mode", div(a, b)),
      {"div.trunc_rounding", rounded},
      {"div.floor_rounding", rounded},
      LOCKSTEP_TWO("floor_divide", div(a, b, RoundingMode::floor)),
      LOCKSTEP_TWO("__radd__", b + a),
      LOCKSTEP_TWO("__rsub__", b - a),
      LOCKSTEP_TWO("__rmul__", b * a),
      LOCKSTEP_TWO("__rdiv__", div(b, a)),
      LOCKSTEP_TWO("maximum", maximum(a, b)),
      LOCKSTEP_TWO("minimum", minimum(a, b)),
      LOCKSTEP_TWO("eq", a == b),
      LOCKSTEP_TWO("ne", a != b),
      LOCKSTEP_TWO("lt", a < b),
      LOCKSTEP_TWO("le", a <= b),
      LOCKSTEP_TWO("gt", a > b),
      LOCKSTEP_TWO("ge", a >= b),
      {"where",
       [](Call& c) -> Results {
         const Tensor condition = c.tensor(1, "condition");
         if (!c.is_tensor(0, "input")) return where(condition, c.number(0, "input"), c.tensor(2, "other"));
         if (!c.is_tensor(2, "other")) return where(condition, c.tensor(0, "input"), c.number(2, "other"));
         return where(condition, c.tensor(0, "input"), c.tensor(2, "other"));
       }},
  };
}

}  // namespace lockstep::testing
