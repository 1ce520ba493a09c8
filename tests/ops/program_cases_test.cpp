#include "tests/support/program_cases.h"

#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/core/random.h"

namespace lockstep::testing {
namespace {

class ProgramOperations : public ::testing::TestWithParam<OpCase> {};
TEST_P(ProgramOperations, ValuesAndGradients) {
  check_op(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, ProgramOperations, ::testing::ValuesIn(program_cases::all()),
                         [](const auto& i) { return i.param.name; });

TEST(ProgramOperations, ALayerIsItsSteps) {
  manual_seed(1);
  const Tensor x = randn({4, 2, 3});
  const CellWeights weights{randn({20, 3}), randn({20, 5}), randn({20}), randn({20})};
  const RecurrentResult whole = recurrent(Cell::lstm, x, {}, weights);
  CellState state;
  for (std::int64_t t = 0; t < 4; ++t) {
    state = recurrent(Cell::lstm, x.narrow(0, t, 1), state, weights).state;
    expect_close(whole.output[t], state.h, 1e-6, 1e-6);
  }
  expect_close(whole.state.c, state.c, 1e-6, 1e-6);
}

TEST(ProgramOperations, ErrorsNameTheProblem) {
  const CellWeights weights{zeros({20, 3}), zeros({20, 5}), {}, {}};
  const auto expect = [](const std::string& error, const char* part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  expect(error_of([&] {
           recurrent(Cell::lstm, zeros({4, 2, 7}), {}, weights);
         }),
         "expected weight_ih of sizes [20, 7], found [20, 3]");
  expect(error_of([&] { recurrent(Cell::lstm, zeros({2, 3}), {}, weights); }), "[steps, batch, width]");
  expect(error_of([] { conv_transpose2d(zeros({1, 3, 4, 4}), zeros({2, 3, 3, 3})); }), "3 input channels");
  expect(error_of([] { interpolate(zeros({1, 1, 2, 2}), {}); }), "either a size or a positive scale_factor");
  expect(error_of([] { einsum("ij,jk->ik", {zeros({2, 3})}); }), "is for 2 operands, found 1");
  expect(error_of([] { einsum("ij->iz", {zeros({2, 3})}); }), "'z' in the result");
  expect(error_of([] { pad(zeros({3}), {1, 2, 3}); }), "found 3 numbers");
  expect(error_of([] { one_hot(tensor<std::int64_t>({5}), 3); }), "expected indices in [0, 3), found 5");
  expect(error_of([] { binary_cross_entropy(full({2}, 1.5), ones({2})); }), "probabilities in [0, 1]");
  expect(error_of([] { (void)~zeros({2}); }), "expected bool tensors, found float32");
}

TEST(ProgramOperations, SmallOnes) {
  const Tensor x = arange(6).to(kFloat64).view({2, 3});
  EXPECT_TRUE(equal(lerp(x, x + 2.0, 0.25), x + 0.5));
  EXPECT_TRUE(equal(tile(x, {2, 1}), cat({x, x})));
  EXPECT_TRUE(equal(repeat_interleave(x, 2, 1), stack({x, x}, 2).flatten(1)));
  EXPECT_TRUE(equal(meshgrid({arange(2), arange(3)})[1], arange(3).expand({2, 3})));
  EXPECT_FALSE(allclose(x, x + 1e-3));
  EXPECT_TRUE(allclose(x, x + 1e-9));
  EXPECT_TRUE((~(x < 3.0) | (x == 0.0)).sum().item<std::int64_t>() == 4);
  EXPECT_EQ(adaptive_max_pool2d(x.view({1, 2, 3}), {1, 2}).to_vector<double>(), (std::vector<double>{4, 5}));
  const Tensor weights = x.clone();
  EXPECT_EQ(weights.clamp_(1.0, 3.0).to_vector<double>(), (std::vector<double>{1, 1, 2, 3, 3, 3}));
}

}  // namespace
}  // namespace lockstep::testing
