#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "lockstep/autograd/ops.h"
#include "tests/support/golden.h"

namespace lockstep::testing {
namespace {

using In = const GoldenInputs&;

Tensor together(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> flat;
  for (const Tensor& tensor : tensors) flat.push_back(tensor.flatten());
  return cat(flat);
}

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
    {"interpolate_bicubic",
     [](In in) {
       const auto resize = [&](InterpolateOptions options) {
         options.mode = kBicubic;
         return interpolate(in["x"], options);
       };
       return together({resize({.size = {9, 7}}), resize({.size = {2, 3}}),
                        resize({.size = {8, 1}, .align_corners = true}), resize({.scale_factor = 1.7}),
                        resize({.scale_factor = 2, .align_corners = true})});
     }},
    {"interpolate_volumes",
     [](In in) {
       const Tensor& x = in["x"];
       return together({interpolate(x, {.mode = kTrilinear, .volume_size = {5, 3, 7}}),
                        interpolate(x, {.mode = kTrilinear, .align_corners = true, .volume_size = {2, 6, 5}}),
                        interpolate(x, {.scale_factor = 1.6, .mode = kTrilinear}),
                        interpolate(x, {.volume_size = {4, 3, 9}})});
     }},
    {"interpolate_area",
     [](In in) {
       const Tensor& x = in["x"];
       return together({interpolate(x, {.size = {3, 4}, .mode = kArea}),
                        interpolate(x[0], {.scale_factor = 0.5, .mode = kArea}),
                        interpolate(x.reshape({1, 1, 2, 4, 6}), {.mode = kArea, .volume_size = {2, 3, 2}})});
     }},
    {"max_unpool2d",
     [](In in) {
       const auto [values, places] = max_pool2d_with_indices(in["x"].slice(2, 0, 4).slice(3, 0, 6), 2);
       const auto [wide, wide_places] = max_pool2d_with_indices(in["x"], {3, 2}, {.stride = 2, .padding = 1});
       return together({max_unpool2d(values, places, 2), max_unpool2d(values[0], places[0], 2, {.output_size = {5, 7}}),
                        max_unpool2d(wide, wide_places, {3, 2}, {.stride = 2, .padding = 1, .output_size = {5, 7}})});
     }},
    {"writes_through_views",
     [](In in) {
       using indexing::Slice;
       const Tensor &a = in["a"], &b = in["b"], y = zeros({3, 4}, options_of(a)), early = y[0], column = y.select(1, 1);
       for (std::int64_t t = 0; t < 3; ++t) y[t] = a[t] * 2;
       y[1] = y[0] * 0.5 + b[1];
       y.index({Slice(), 3}) *= b.select(1, 0);
       y[2].slice(0, 1, 3) += a[0].slice(0, 0, 2);
       y.t()[0].copy_(y.t()[1].clone());
       const Tensor z = a + b, rows = z.view({2, 6});
       z[1] = y[1];
       rows[0].mul_(b.reshape({2, 6})[1]);
       z.index_put_({z > 0.5}, 0.25);
       z.index_put_({0, Slice(2)}, early.slice(0, 0, 2));
       const std::vector<Tensor> halves = z.split(2, 1);
       halves[0].fill_(0.5);
       halves[1].slice(0, 1).exp_();
       return together({y, early, column, z, rows, halves[0], halves[1]});
     }},
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
