#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/golden.h"

namespace lockstep::testing {
namespace {

using In = const GoldenInputs&;

// Arguments as in scripts/golden_cases.py, reduce().
const GoldenCase kCases[] = {
    {"sum_all", [](In in) { return in["x"].sum({}, false); }},
    {"sum_dims0", [](In in) { return in["x"].sum({0}, false); }},
    {"sum_dims2_keep", [](In in) { return in["x"].sum({-1}, true); }},
    {"sum_dims02",
     [](In in) {
       return in["x"].sum({0, 2}, false);
     }},
    {"sum_dims02_keep",
     [](In in) {
       return in["x"].sum({0, 2}, true);
     }},
    {"sum_dims012_keep",
     [](In in) {
       return in["x"].sum({0, 1, 2}, true);
     }},
    {"mean_all", [](In in) { return in["x"].mean({}, false); }},
    {"mean_dims0", [](In in) { return in["x"].mean({0}, false); }},
    {"mean_dims2_keep", [](In in) { return in["x"].mean({-1}, true); }},
    {"mean_dims02",
     [](In in) {
       return in["x"].mean({0, 2}, false);
     }},
    {"mean_dims02_keep",
     [](In in) {
       return in["x"].mean({0, 2}, true);
     }},
    {"mean_dims012_keep",
     [](In in) {
       return in["x"].mean({0, 1, 2}, true);
     }},
    {"var_all", [](In in) { return in["x"].var({}, 1.0, false); }},
    {"var_dims0", [](In in) { return in["x"].var({0}, 1.0, false); }},
    {"var_dims2_keep", [](In in) { return in["x"].var({-1}, 1.0, true); }},
    {"var_dims02",
     [](In in) {
       return in["x"].var({0, 2}, 1.0, false);
     }},
    {"var_dims02_keep",
     [](In in) {
       return in["x"].var({0, 2}, 1.0, true);
     }},
    {"var_dims012_keep",
     [](In in) {
       return in["x"].var({0, 1, 2}, 1.0, true);
     }},
    {"var_biased_all", [](In in) { return in["x"].var({}, 0.0, false); }},
    {"var_biased_dims0", [](In in) { return in["x"].var({0}, 0.0, false); }},
    {"var_biased_dims2_keep", [](In in) { return in["x"].var({-1}, 0.0, true); }},
    {"var_biased_dims02",
     [](In in) {
       return in["x"].var({0, 2}, 0.0, false);
     }},
    {"var_biased_dims02_keep",
     [](In in) {
       return in["x"].var({0, 2}, 0.0, true);
     }},
    {"var_biased_dims012_keep",
     [](In in) {
       return in["x"].var({0, 1, 2}, 0.0, true);
     }},
    {"max_all", [](In in) { return in["x"].max({}, false); }},
    {"max_dims0", [](In in) { return in["x"].max({0}, false); }},
    {"max_dims2_keep", [](In in) { return in["x"].max({-1}, true); }},
    {"max_dims02",
     [](In in) {
       return in["x"].max({0, 2}, false);
     }},
    {"max_dims02_keep",
     [](In in) {
       return in["x"].max({0, 2}, true);
     }},
    {"max_dims012_keep",
     [](In in) {
       return in["x"].max({0, 1, 2}, true);
     }},
    {"min_all", [](In in) { return in["x"].min({}, false); }},
    {"min_dims0", [](In in) { return in["x"].min({0}, false); }},
    {"min_dims2_keep", [](In in) { return in["x"].min({-1}, true); }},
    {"min_dims02",
     [](In in) {
       return in["x"].min({0, 2}, false);
     }},
    {"min_dims02_keep",
     [](In in) {
       return in["x"].min({0, 2}, true);
     }},
    {"min_dims012_keep",
     [](In in) {
       return in["x"].min({0, 1, 2}, true);
     }},
    {"logsumexp_all",
     [](In in) {
       return in["x"].logsumexp({0, 1, 2}, false);
     }},
    {"logsumexp_dims0", [](In in) { return in["x"].logsumexp({0}, false); }},
    {"logsumexp_dims2_keep", [](In in) { return in["x"].logsumexp({-1}, true); }},
    {"logsumexp_dims02",
     [](In in) {
       return in["x"].logsumexp({0, 2}, false);
     }},
    {"logsumexp_dims02_keep",
     [](In in) {
       return in["x"].logsumexp({0, 2}, true);
     }},
    {"logsumexp_dims012_keep",
     [](In in) {
       return in["x"].logsumexp({0, 1, 2}, true);
     }},
    {"max_ties", [](In in) { return in["x"].max({1}); }},
    {"min_ties", [](In in) { return in["x"].min(); }},
    {"argmax_dim0", [](In in) { return in["x"].argmax(0); }},
    {"argmax_dim1", [](In in) { return in["x"].argmax(1); }},
    {"argmax_dim2", [](In in) { return in["x"].argmax(-1); }},
    {"argmax_keep", [](In in) { return in["x"].argmax(1, true); }},
    {"logsumexp_large", [](In in) { return in["x"].logsumexp({1}); }},
    {"sum_long", [](In in) { return in["x"].sum(); }},
    {"mean_long_rows", [](In in) { return in["x"].mean({1}); }},
};

class GoldenReduce : public ::testing::TestWithParam<GoldenCase> {};
TEST_P(GoldenReduce, EqualsPyTorch) {
  check_golden("reduce", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, GoldenReduce, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });
TEST(GoldenReduceFile, EveryRecordedCaseIsTested) {
  expect_all_recorded_cases("reduce", kCases);
}

}  // namespace
}  // namespace lockstep::testing
