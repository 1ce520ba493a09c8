#include "lockstep/autograd/ops/cat/cat.h"

#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class Cat : public ::testing::TestWithParam<ViewCase> {};
TEST_P(Cat, ValuesSharingAndGradients) {
  check_view_case(GetParam());
}

const ViewCase kCases[] = {
    {"Rows",
     {1, 2},
     [](const Tensor& x) {
       return cat({x, x});
     },
     {2, 2},
     {0, 1, 0, 1},
     false},
    {"Columns",
     {2, 1},
     [](const Tensor& x) {
       return cat({x, x, x}, -1);
     },
     {2, 3},
     {0, 0, 0, 1, 1, 1},
     false},
    {"One", {2}, [](const Tensor& x) { return cat({x}); }, {2}, {0, 1}, false},
    {"Split",
     {5},
     [](const Tensor& x) {
       return cat({split(x, 2)[1], split(x, 2)[2]});
     },
     {3},
     {2, 3, 4},
     false},
    {"Stack",
     {2},
     [](const Tensor& x) {
       return stack({x, x});
     },
     {2, 2},
     {0, 1, 0, 1},
     false},
    {"StackLast",
     {2},
     [](const Tensor& x) {
       return stack({x, x}, -1);
     },
     {2, 2},
     {0, 0, 1, 1},
     false},
    {"StackScalars",
     {},
     [](const Tensor& x) {
       return stack({x, x});
     },
     {2},
     {0, 0},
     false},
    {"SplitLast", {2, 3}, [](const Tensor& x) { return split(x, 2, 1)[1]; }, {2, 1}, {2, 5}},
    {"SplitSizes",
     {5},
     [](const Tensor& x) {
       return split_with_sizes(x, {1, 0, 4})[2];
     },
     {4},
     {1, 2, 3, 4}},
    {"Chunk", {5, 1}, [](const Tensor& x) { return chunk(x, 3)[1]; }, {2, 1}, {2, 3}},
};
INSTANTIATE_TEST_SUITE_P(Ops, Cat, ::testing::ValuesIn(kCases), [](const auto& info) { return info.param.name; });

TEST(CatOp, DifferentLengthsAndGradients) {
  const auto join = [](const std::vector<Tensor>& in) { return cat({in[0], in[1], in[2]}, 1); };
  const std::vector<Tensor> inputs{make_leaf({2, 3, 2}, 1), make_leaf({2, 1, 2}, 2), make_leaf({2, 4, 2}, 3)};
  EXPECT_EQ(to_string(join(inputs).sizes()), "[2, 8, 2]");
  gradcheck(join, inputs);
}

TEST(CatOp, SkipsEmptyAndPromotes) {
  const Tensor joined = cat({zeros({0}, {.dtype = kFloat32}), ones({2, 2}, {.dtype = kFloat64}), zeros({0, 2})});
  EXPECT_EQ(to_string(joined.sizes()), "[2, 2]");
  EXPECT_EQ(joined.dtype(), kFloat64);
  EXPECT_EQ(to_string(cat({zeros({0}), zeros({0})}).sizes()), "[0]");

  const Tensor narrow_type = make_leaf({2}, 1, kFloat32), nothing = make_leaf({0}, 1, kFloat32);
  cat({narrow_type, nothing, make_leaf({1})}).backward(ones({3}, {.dtype = kFloat64}));
  EXPECT_EQ(narrow_type.grad().dtype(), kFloat32);
  EXPECT_EQ(narrow_type.grad().to_vector<double>(), (std::vector<double>{1, 1}));
  EXPECT_EQ(to_string(nothing.grad().sizes()), "[0]");
}

TEST(CatOp, UnusedPartsOfASplitGetZeros) {
  const Tensor x = make_leaf({5});
  split(x, 2)[1].backward(ones({2}, {.dtype = kFloat64}));
  EXPECT_EQ(x.grad().to_vector<double>(), (std::vector<double>{0, 0, 1, 1, 0}));
}

TEST(CatOp, SplitOfEmptyDimension) {
  EXPECT_EQ(split(zeros({0, 2}), 3).size(), 1u);
  EXPECT_EQ(to_string(chunk(zeros({0, 2}), 3)[0].sizes()), "[0, 2]");
}

TEST(CatOp, AnEmptyDimensionHasAsManyChunksAsAreAskedFor) {
  for (const auto& [sizes, dim] : {std::pair{Shape{0, 2}, 0}, std::pair{Shape{2, 0}, 1}}) {
    const std::vector<Tensor> parts = chunk(zeros(sizes), 3, dim);
    ASSERT_EQ(parts.size(), 3u);
    for (const Tensor& part : parts) EXPECT_EQ(part.sizes(), sizes);
  }
  EXPECT_EQ(chunk(zeros({3}), INT64_MAX).size(), 3u);
}

TEST(CatOp, Errors) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of([&] { cat({}); }), "[cat] expected at least one tensor, found none");
  EXPECT_EQ(error_of([&] { cat({x, Tensor()}); }), "[cat] tensor 1 is undefined");
  EXPECT_EQ(error_of([&] {
              cat({x, zeros({2, 2})});
            }),
            "[cat] tensor 1 has shape [2, 2], which does not fit [2, 3] in all dimensions but 0");
  EXPECT_EQ(error_of([&] {
              cat({x, zeros({2})});
            }),
            "[cat] tensor 1 has shape [2], which does not fit [2, 3] in all dimensions but 0");
  EXPECT_EQ(error_of([&] {
              cat({zeros({}), zeros({})});
            }),
            "[cat] tensors without dimensions cannot be joined; use stack()");
  EXPECT_EQ(error_of([&] {
              cat({x, zeros({2, 3}, {.device = Device(kCPU, 1)})});
            }),
            "[cat] tensor 1 is on cpu:1, others on cpu:0; move them together");
  EXPECT_EQ(error_of([&] {
              stack({x, zeros({3, 2})});
            }),
            "[stack] tensor 1 has shape [3, 2], expected [2, 3] as the first");
  EXPECT_EQ(error_of([&] {
              stack({zeros({1, 1, 1, 1, 1, 1, 2, 3})});
            }),
            "[stack] the result would have 9 dimensions; expected at most 8");
  EXPECT_EQ(error_of([&] { split(x, 0); }), "[split] expected a size of at least 1, found 0");
  EXPECT_EQ(error_of([&] {
              split_with_sizes(x, {1, 1}, 1);
            }),
            "[split_with_sizes] the sizes leave 1 of 3 elements of dimension 1 over; they must add up");
  EXPECT_EQ(error_of([&] { split_with_sizes(x, {3}, 0); }),
            "[split_with_sizes] size 3 does not fit: 2 of 2 elements are left in dimension 0");
  EXPECT_EQ(error_of([&] { chunk(x, 0); }), "[chunk] expected at least 1 chunk, found 0");
}

}  // namespace
}  // namespace lockstep::testing
