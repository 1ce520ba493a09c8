#include "lockstep/autograd/ops/tril/tril.h"

#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

Tensor plain(const Tensor& x, std::int64_t diagonal, bool upper) {
  const Tensor out = copy_contiguous(x.detach());
  const std::int64_t rows = x.size(-2), columns = x.size(-1);
  for (std::int64_t i = 0; i < out.numel(); ++i) {
    const std::int64_t distance = i % columns - i / columns % rows;
    if (upper ? distance < diagonal : distance > diagonal) out.data<double>()[i] = 0;
  }
  return out;
}

class Tril : public ::testing::TestWithParam<Shape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, Tril,
                         ::testing::Values(Shape{1, 4}, Shape{3, 5}, Shape{5, 3}, Shape{2, 3, 4, 4}, Shape{0, 3},
                                           Shape{3, 0}, Shape{300, 200}));
TEST_P(Tril, ValuesAndGradients) {
  for (const std::int64_t diagonal : {0, 1, -2, 100, -100})
    check_op({.name = "",
              .inputs = [] { return TensorList{make_leaf(GetParam())}; },
              .run =
                  [=](const TensorList& in) {
                    return TensorList{tril(in[0], diagonal), triu(in[0], diagonal)};
                  },
              .expected =
                  [=](const TensorList& in) {
                    return TensorList{plain(in[0], diagonal, false), plain(in[0], diagonal, true)};
                  }});
}

TEST(TrilValues, OfAnyDtype) {
  EXPECT_EQ(tril(ones({2, 3}, {.dtype = kBool})).to_vector<bool>(),
            (std::vector<bool>{true, false, false, true, true, false}));
  EXPECT_EQ(triu(ones({2, 2}, {.dtype = kInt64}), INT64_MAX).sum().item<std::int64_t>(), 0);
}

TEST(TrilErrors, NameTheProblem) {
  EXPECT_NE(error_of([] { tril(ones({3})); }).find("[tril] expected a tensor [..., rows, columns], found [3]"),
            std::string::npos);
  EXPECT_NE(error_of([] { triu({}); }).find("[triu]"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
