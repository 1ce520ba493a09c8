#include "lockstep/autograd/ops/gather/gather.h"
#include "tests/support/op_case.h"
#include "tests/support/view_testing.h"

namespace lockstep::testing {
namespace {

class IndexSelect : public ::testing::TestWithParam<ViewCase> {};
TEST_P(IndexSelect, ValuesAndGradients) {
  check_view_case(GetParam());
}

Tensor at(std::initializer_list<std::int64_t> values) {
  return tensor<std::int64_t>(values);
}

const ViewCase kCases[] = {
    {"First",
     {3, 2},
     [](const Tensor& x) {
       return index_select(x, 0, at({2, 0}));
     },
     {2, 2},
     {4, 5, 0, 1},
     false},
    {"Last", {2, 3}, [](const Tensor& x) { return x.index_select(-1, at({1})); }, {2, 1}, {1, 4}, false},
    {"Middle", {2, 2, 2}, [](const Tensor& x) { return x.index_select(1, at({1})); }, {2, 1, 2}, {2, 3, 6, 7}, false},
    {"Repeated",
     {3},
     [](const Tensor& x) {
       return x.index_select(0, at({1, 1, 2, 1}));
     },
     {4},
     {1, 1, 2, 1},
     false},
    {"None", {2, 2}, [](const Tensor& x) { return x.index_select(0, at({})); }, {0, 2}, {}, false},
    {"Int32", {3}, [](const Tensor& x) { return x.index_select(0, tensor<std::int32_t>({2})); }, {1}, {2}, false},
    {"ScalarIndex",
     {3},
     [](const Tensor& x) { return x.index_select(0, full({}, 2, {.dtype = kInt64})); },
     {1},
     {2},
     false},
};
INSTANTIATE_TEST_SUITE_P(Ops, IndexSelect, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(IndexSelectOp, StridedIndexAndEmptyTensor) {
  const Tensor x = make_input({4, 2});
  const Tensor index = make_strided(at({3, 1}));
  expect_close(x.index_select(0, index), x.index_select(0, at({3, 1})), 0, 0);
  EXPECT_EQ(to_string(zeros({4, 0}).index_select(0, at({3, 1})).sizes()), "[2, 0]");
  EXPECT_EQ(to_string(zeros({0, 3}).index_select(0, at({})).sizes()), "[0, 3]");
}

TEST(IndexSelectOp, ManyRows) {
  // Enough work for several parts, each row hit some 40 times.
  const Tensor index = cast_values(make_input({4000}, 2, kFloat64, 0, 97), kInt64);
  check_threads({.name = "",
                 .inputs =
                     [] {
                       return TensorList{make_leaf({97, 33})};
                     },
                 .run = [=](const TensorList& in) { return TensorList{in[0].index_select(0, index)}; }});

  const Tensor x = make_leaf({97, 33}, 1, kFloat32), weight = make_input({4000, 33}, 3, kFloat32);
  x.index_select(0, index).backward(weight);
  std::vector<float> expected(97 * 33, 0.0f);
  const std::vector<std::int64_t> rows = index.to_vector<std::int64_t>();
  for (std::size_t k = 0; k < rows.size(); ++k)
    for (std::size_t j = 0; j < 33; ++j)
      expected[static_cast<std::size_t>(rows[k]) * 33 + j] += weight.data<float>()[k * 33 + j];
  EXPECT_EQ(x.grad().to_vector<float>(), expected);
}

TEST(IndexSelectOp, HalfGradientsAreSummedInFloat) {
  const Tensor x = make_leaf({1}, 1, kBFloat16);
  x.index_select(0, zeros({1000}, {.dtype = kInt64})).backward(ones({1000}, {.dtype = kBFloat16}));
  EXPECT_EQ(x.grad().dtype(), kBFloat16);
  EXPECT_EQ(x.grad().item(), 1000.0);
}

TEST(IndexSelectOp, AScalarStaysOne) {
  const Tensor x = make_leaf({});
  const Tensor out = x.index_select(0, at({0}));
  EXPECT_EQ(out.dim(), 0);
  out.backward();
  EXPECT_EQ(x.grad().item(), 1.0);
}

TEST(IndexSelectOp, Errors) {
  const Tensor x = zeros({2, 3});
  EXPECT_EQ(error_of([&] {
              x.index_select(1, at({0, 3}));
            }),
            "[index_select] index 3 at position 1 is out of range; expected a value in [0, 3)");
  EXPECT_EQ(error_of([&] { x.index_select(0, at({-1})); }),
            "[index_select] index -1 at position 0 is out of range; expected a value in [0, 2)");
  EXPECT_EQ(error_of([&] { x.index_select(0, zeros({2})); }),
            "[index_select] expected an int64 or int32 index, found float32; convert it with to(kInt64)");
  EXPECT_EQ(error_of([&] {
              x.index_select(0, zeros({2, 1}, {.dtype = kInt64}));
            }),
            "[index_select] expected an index with one dimension, found shape [2, 1]");
  EXPECT_EQ(error_of([&] { x.index_select(0, zeros({2}, {.dtype = kInt64, .device = Device(kCPU, 1)})); }),
            "[index_select] the index is on cpu:1 and the tensor on cpu:0; move one of them");
  EXPECT_EQ(error_of([&] { x.index_select(0, Tensor()); }), "[index_select] the index tensor is undefined");
  EXPECT_EQ(error_of([&] {
              zeros({}).index_select(0, at({0, 0}));
            }),
            "[index_select] expected one position for a scalar, found 2");
}

}  // namespace
}  // namespace lockstep::testing
