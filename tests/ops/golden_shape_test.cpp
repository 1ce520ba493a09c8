#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/golden.h"

namespace lockstep::testing {
namespace {

using In = const GoldenInputs&;

// Arguments as in scripts/golden_cases.py, shape().
const GoldenCase kCases[] = {
    {"view",
     [](In in) {
       return in["x"].view({4, -1});
     },
     false},
    {"reshape_copy",
     [](In in) {
       return in["x"].transpose(0, 2).reshape({3, 8});
     }},
    {"flatten", [](In in) { return flatten(in["x"]); }},
    {"flatten_1", [](In in) { return in["x"].flatten(1); }},
    {"transpose", [](In in) { return transpose(in["x"], 0, -1); }},
    {"t", [](In in) { return in["x"].t(); }},
    {"permute",
     [](In in) {
       return permute(in["x"], {2, 0, 1});
     }},
    {"expand",
     [](In in) {
       return in["x"].expand({2, 3, 4});
     }},
    {"expand_keep",
     [](In in) {
       return in["x"].expand({5, -1, 4});
     }},
    {"slice", [](In in) { return in["x"].slice(1, 1, 3); }},
    {"slice_step", [](In in) { return in["x"].slice(2, 1, 4, 2); }},
    {"slice_negative", [](In in) { return in["x"].slice(1, -2, -1); }},
    {"narrow", [](In in) { return narrow(in["x"], 2, 1, 2); }},
    {"select", [](In in) { return select(in["x"], 1, -1); }},
    {"brackets", [](In in) { return in["x"][1][2]; }},
    {"squeeze", [](In in) { return squeeze(in["x"]); }},
    {"squeeze_dim", [](In in) { return squeeze(in["x"], 2); }},
    {"unsqueeze", [](In in) { return unsqueeze(in["x"], -2); }},
    {"index_select_0", [](In in) { return index_select(in["x"], 0, in["i"]); }},
    {"index_select_1", [](In in) { return index_select(in["x"], 1, in["i"]); }},
    {"index_select_2", [](In in) { return index_select(in["x"], -1, in["i"]); }},
    {"gather_0", [](In in) { return gather(in["x"], 0, in["i"]); }},
    {"gather_1", [](In in) { return gather(in["x"], 1, in["i"]); }},
    {"gather_2", [](In in) { return gather(in["x"], 2, in["i"]); }},
    {"cat",
     [](In in) {
       return cat({in["a"], in["b"], in["c"]}, 1);
     }},
    {"cat_0",
     [](In in) {
       return cat({in["a"], in["b"], in["a"]});
     }},
    {"stack",
     [](In in) {
       return stack({in["a"], in["b"]}, 1);
     }},
    {"split", [](In in) { return split(in["x"], 2, 1)[1]; }},
    {"split_with_sizes",
     [](In in) {
       return split_with_sizes(in["x"], {1, 3, 1}, 1)[1];
     }},
    {"chunk", [](In in) { return chunk(in["x"], 3, 0)[1]; }},
    {"embedding", [](In in) { return embedding(in["w"], in["i"]); }},
    {"embedding_padding", [](In in) { return embedding(in["w"], in["i"], 4); }},
    {"dropout_eval", [](In in) { return dropout(in["x"], 0.5, false); }},
    {"dropout_all", [](In in) { return dropout(in["x"], 1.0); }},
    {"dropout2d_eval", [](In in) { return dropout2d(in["x"], 0.5, false); }},
    {"dropout2d_all", [](In in) { return dropout2d(in["x"], 1.0); }},
};

class GoldenShape : public ::testing::TestWithParam<GoldenCase> {};
TEST_P(GoldenShape, EqualsPyTorch) {
  check_golden("shape", GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, GoldenShape, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });
TEST(GoldenShapeFile, EveryRecordedCaseIsTested) {
  expect_all_recorded_cases("shape", kCases);
}

/// How many failures check_golden() reports.
int failures_of(const GoldenCase& test_case) {
  ::testing::TestPartResultArray results;
  ::testing::ScopedFakeTestPartResultReporter reporter(
      ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
  check_golden("shape", test_case);
  int failures = 0;
  for (int i = 0; i < results.size(); ++i) failures += results.GetTestPartResult(i).failed();
  return failures;
}

TEST(GoldenCheck, FindsAWrongResultShapeOrGradient) {
  EXPECT_EQ(failures_of({"flatten", [](In in) { return flatten(in["x"]); }}), 0);
  EXPECT_GT(failures_of({"flatten", [](In in) { return flatten(in["x"].transpose(0, 1)); }}), 0);
  EXPECT_GT(failures_of({"flatten", [](In in) { return flatten(in["x"], 1); }}), 0);
  EXPECT_GT(failures_of({"flatten",
                         [](In in) {
                           const Tensor x = flatten(in["x"]);  // right values, no gradient for the first one
                           return cat({x.detach().slice(0, 0, 1), x.slice(0, 1, x.numel())});
                         }}),
            0);
}

}  // namespace
}  // namespace lockstep::testing
