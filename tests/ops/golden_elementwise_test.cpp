#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/factories.h"
#include "tests/support/golden.h"

namespace lockstep::testing {
namespace {

using In = const GoldenInputs&;

// Arguments as in scripts/golden_cases.py, elementwise().
const GoldenCase kCases[] = {
    {"neg", [](In in) { return -in["x"]; }},
    {"exp", [](In in) { return in["x"].exp(); }},
    {"log", [](In in) { return in["x"].log(); }},
    {"sqrt", [](In in) { return in["x"].sqrt(); }},
    {"rsqrt", [](In in) { return in["x"].rsqrt(); }},
    {"abs", [](In in) { return in["x"].abs(); }},
    {"abs_special", [](In in) { return in["x"].abs(); }},
    {"tanh", [](In in) { return in["x"].tanh(); }},
    {"sigmoid", [](In in) { return in["x"].sigmoid(); }},
    {"sigmoid_large", [](In in) { return in["x"].sigmoid(); }},
    {"relu", [](In in) { return in["x"].relu(); }},
    {"relu_special", [](In in) { return relu(in["x"]); }},
    {"leaky_relu", [](In in) { return leaky_relu(in["x"]); }},
    {"leaky_relu_slope", [](In in) { return leaky_relu(in["x"], 0.2); }},
    {"gelu", [](In in) { return gelu(in["x"]); }},
    {"gelu_large", [](In in) { return gelu(in["x"]); }},
    {"silu", [](In in) { return silu(in["x"]); }},
    {"pow_2", [](In in) { return in["x"].pow(2.0); }},
    {"pow_3", [](In in) { return in["x"].pow(3.0); }},
    {"pow_half", [](In in) { return in["x"].pow(0.5); }},
    {"pow_minus_1_5", [](In in) { return in["x"].pow(-1.5); }},
    {"pow_0", [](In in) { return in["x"].pow(0.0); }},
    {"clamp", [](In in) { return in["x"].clamp(-1.0, 1.0); }},
    {"clamp_min", [](In in) { return in["x"].clamp(0.25, std::nullopt); }},
    {"clamp_max", [](In in) { return in["x"].clamp(std::nullopt, 0.25); }},

    {"add", [](In in) { return in["a"] + in["b"]; }},
    {"add_outer", [](In in) { return add(in["a"], in["b"]); }},
    {"add_scalar_tensor", [](In in) { return in["a"] + in["b"]; }},
    {"add_row", [](In in) { return in["a"] + in["b"]; }},
    {"add_number", [](In in) { return in["a"] + 0.75; }},
    {"add_alpha", [](In in) { return add(in["a"], in["b"], -2.5); }},
    {"add_in_place", [](In in) { return in["a"].clone().add_(in["b"], 0.5); }},
    {"sub", [](In in) { return in["a"] - in["b"]; }},
    {"sub_outer", [](In in) { return sub(in["a"], in["b"]); }},
    {"sub_scalar_tensor", [](In in) { return in["a"] - in["b"]; }},
    {"sub_number", [](In in) { return in["a"] - 0.75; }},
    {"sub_alpha", [](In in) { return sub(in["a"], in["b"], 0.25); }},
    {"number_sub", [](In in) { return 0.75 - in["a"]; }},
    {"mul", [](In in) { return in["a"] * in["b"]; }},
    {"mul_outer", [](In in) { return mul(in["a"], in["b"]); }},
    {"mul_scalar_tensor", [](In in) { return in["a"] * in["b"]; }},
    {"mul_column", [](In in) { return in["a"] * in["b"]; }},
    {"mul_number", [](In in) { return in["a"] * -1.5; }},
    {"mul_self", [](In in) { return in["a"] * in["a"]; }},
    {"mul_in_place", [](In in) { return in["a"].clone().mul_(in["b"]); }},
    {"div", [](In in) { return in["a"] / in["b"]; }},
    {"div_outer", [](In in) { return div(in["a"], in["b"]); }},
    {"div_scalar_tensor", [](In in) { return in["a"] / in["b"]; }},
    {"div_number", [](In in) { return in["a"] / 3.0; }},
    {"number_div", [](In in) { return 3.0 / in["b"]; }},
    {"maximum", [](In in) { return maximum(in["a"], in["b"]); }},
    {"maximum_ties", [](In in) { return maximum(in["a"], in["b"]); }},
    {"minimum", [](In in) { return minimum(in["a"], in["b"]); }},
    {"minimum_ties", [](In in) { return minimum(in["a"], in["b"]); }},
    {"pow_tensor", [](In in) { return pow(in["a"], in["b"]); }},
    {"number_pow", [](In in) { return pow(1.75, in["b"]); }},

    {"eq", [](In in) { return in["a"] == in["b"]; }},
    {"ne", [](In in) { return in["a"] != in["b"]; }},
    {"lt", [](In in) { return in["a"] < in["b"]; }},
    {"le", [](In in) { return in["a"] <= in["b"]; }},
    {"gt", [](In in) { return in["a"] > in["b"]; }},
    {"ge", [](In in) { return in["a"] >= in["b"]; }},
    {"lt_number", [](In in) { return in["a"] < 2.0; }},
    {"where", [](In in) { return where(in["c"], in["a"], in["b"]); }},
    {"where_broadcast", [](In in) { return where(in["c"], in["a"], in["b"]); }},
    {"where_number", [](In in) { return where(in["c"], in["a"], -1.5); }},

    {"to_float16", [](In in) { return in["x"].to(kFloat16); }},
    {"to_bfloat16", [](In in) { return in["x"].to(kBFloat16); }},
    {"to_int64", [](In in) { return in["x"].to(kInt64); }},
    {"to_bool", [](In in) { return in["x"].to(kBool); }},
    {"contiguous", [](In in) { return in["x"].t().contiguous(); }},
    {"clone", [](In in) { return clone(in["x"]); }},
    {"copy_",
     [](In in) {
       return zeros({3, 7}, options_of(in["x"])).copy_(in["x"]);
     }},
    {"copy_broadcast",
     [](In in) {
       return zeros({3, 7}, options_of(in["x"])).copy_(in["x"]);
     }},
};

class GoldenElementwise : public ::testing::TestWithParam<GoldenCase> {};
TEST_P(GoldenElementwise, EqualsPyTorch) {
  check_golden("elementwise", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, GoldenElementwise, ::testing::ValuesIn(kCases),
                         [](const auto& i) { return i.param.name; });
TEST(GoldenElementwiseFile, EveryRecordedCaseIsTested) {
  expect_all_recorded_cases("elementwise", kCases);
}

}  // namespace
}  // namespace lockstep::testing
