#include "lockstep/autograd/ops/rotary/rotary.h"

#include "lockstep/autograd/ops/unary/unary.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

TensorList plain(const TensorList& in) {
  const Tensor x = copy_contiguous(in[0].detach()), out = empty_like(x);
  const std::int64_t length = x.size(-2), width = x.size(-1), half = width / 2;
  const std::vector<double> angles = in[1].to_vector<double>();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const std::int64_t row = i / width, column = i % width;
    const double angle = angles[static_cast<std::size_t>(row % length * half + column % half)];
    const double* pair = x.data<double>() + row * width + column % half;
    out.data<double>()[i] = column < half ? pair[0] * std::cos(angle) - pair[half] * std::sin(angle)
                                          : pair[half] * std::cos(angle) + pair[0] * std::sin(angle);
  }
  return {out};
}

class Rotary : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Rotary,
                         ::testing::Values(Shape{1, 2}, Shape{5, 6}, Shape{2, 3, 7, 4}, Shape{0, 3, 4}, Shape{3, 0},
                                           Shape{40, 20, 64}));
TEST_P(Rotary, ValuesAndGradients) {
  const Shape sizes = GetParam();
  check_op({.name = "",
            .inputs =
                [=] {
                  return TensorList{make_leaf(sizes, 1), make_input({sizes[sizes.dim() - 2], sizes.back() / 2}, 2)};
                },
            .run = [](const TensorList& in) { return TensorList{rotary(in[0], cos(in[1]), sin(in[1]))}; },
            .expected = plain});
}

TEST(RotaryErrors, NameTheProblem) {
  const Tensor angles = ones({3, 2});
  EXPECT_NE(error_of([&] { rotary(ones({3, 5}), angles, angles); }).find("even D, found [3, 5]"), std::string::npos);
  EXPECT_NE(error_of([&] { rotary(ones({4, 4}), angles, angles); }).find("of shape [4, 2] on cpu"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
