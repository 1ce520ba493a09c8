#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"
#include "tests/support/test_device.h"

namespace lockstep::testing {
namespace {

using Inputs = std::function<TensorList()>;

Inputs indexed(const Shape& sizes, const Shape& index, std::int64_t size, DType dtype = kInt64) {
  return [=] { return TensorList{make_leaf(sizes, 1), make_input(index, 2, dtype, 0.0, static_cast<double>(size))}; };
}

OpCase select(const char* name, const Shape& sizes, int dim, std::int64_t n, DType dtype = kInt64) {
  return {name, indexed(sizes, {n}, sizes[dim], dtype),
          [=](const TensorList& in) { return TensorList{index_select(in[0], dim, in[1])}; },
          4.0};  // gradients of rows that were chosen often
}
OpCase rows_of(const char* name, const Shape& weight, const Shape& index,
               std::optional<std::int64_t> padding = std::nullopt) {
  return {name, indexed(weight, index, weight[0]),
          [=](const TensorList& in) { return TensorList{embedding(in[0], in[1], padding)}; }, 4.0};
}
OpCase gathered(const char* name, const Shape& sizes, int dim, const Shape& index) {
  return {name, indexed(sizes, index, sizes[dim]),
          [=](const TensorList& in) { return TensorList{gather(in[0], dim, in[1])}; }, 4.0};
}
OpCase dropped(const char* name, const Shape& sizes, double p) {
  return {name, [=] { return TensorList{make_leaf(sizes, 1)}; },
          [=](const TensorList& in) {
            return TensorList{dropout(in[0], p), dropout(in[0].relu(), p)};
          }};
}

const OpCase kCases[] = {
    select("index_select_rows", {7, 12}, 0, 20),
    select("index_select_odd_rows", {7, 13}, 0, 20),
    select("index_select_columns", {9, 11}, 1, 30),
    select("index_select_middle", {3, 11, 5}, 1, 7),
    select("index_select_32", {7, 12}, 0, 20, kInt32),
    select("index_select_many_of_few", {3, 200}, 0, 3000),
    select("index_select_none", {7, 12}, 0, 0),
    {"index_select_of_other_dtypes",
     [] {
       return TensorList{make_input({9, 5}, 1, kInt64, 0.0, 9.0), make_input({9, 5}, 1, kBool, 0.0, 2.0),
                         make_input({9, 16}, 1, kUInt8, 0.0, 9.0), make_input({30}, 2, kInt64, 0.0, 9.0)};
     },
     [](const TensorList& in) {
       return TensorList{index_select(in[0], 0, in[3]), index_select(in[1], 0, in[3]), index_select(in[2], 0, in[3])};
     }},
    rows_of("embedding", {65, 48}, {4, 64}),
    rows_of("embedding_wide", {10, 300}, {2, 5, 7}),
    rows_of("embedding_many_rows", {3000, 8}, {50}),
    rows_of("embedding_padding", {6, 8}, {50}, -2),
    rows_of("embedding_of_nothing", {6, 8}, {0, 3}),
    gathered("gather_classes", {33, 10}, 1, {33, 1}),
    gathered("gather_rows", {5, 40}, 0, {70, 40}),
    gathered("gather_long_line", {40}, 0, {900}),
    gathered("gather_smaller_index", {4, 6, 5}, 1, {3, 20, 4}),
    gathered("gather_nothing", {4, 6}, 1, {4, 0}),
    {"gather_of_other_dtypes",
     [] {
       return TensorList{make_input({9, 5}, 1, kInt64, 0.0, 9.0), make_input({9, 5}, 1, kBool, 0.0, 2.0),
                         make_input({9, 3}, 2, kInt64, 0.0, 5.0)};
     },
     [](const TensorList& in) {
       return TensorList{gather(in[0], 1, in[2]), gather(in[1], 1, in[2])};
     }},
    dropped("dropout", {7, 37}, 0.5),
    dropped("dropout_of_packs", {64, 40}, 0.25),
    dropped("dropout_large", {3, 20001}, 0.1),
    dropped("dropout_all", {7, 37}, 1.0),
    dropped("dropout_nothing", {0, 37}, 0.5),
    {"dropout_unaligned", [] { return TensorList{make_leaf({1001}, 1)}; },
     [](const TensorList& in) { return TensorList{dropout(in[0].slice(0, 1, 1001), 0.5)}; }},
    {"dropout_of_part",
     [] {
       return TensorList{make_leaf({7, 5, 36}, 1)};
     },
     [](const TensorList& in) {
       return TensorList{dropout_of_part(in[0], {1, 2, 9}, 0.3), dropout_of_part(in[0], {2, 36, 72}, 0.5)};
     }},
    {"index_of_pairs",
     [] {
       return TensorList{make_leaf({5, 6, 3}, 1), make_input({4, 1}, 2, kInt64, 0.0, 5.0),
                         make_input({3}, 3, kInt64, -6.0, 6.0)};
     },
     [](const TensorList& in) {
       return TensorList{in[0].index({in[1], in[2]})};
     },
     4.0},
    {"index_of_a_mask",
     [] {
       return TensorList{make_leaf({5, 6, 3}, 1), make_input({5, 6}, 2, kInt64, 0.0, 2.0) == 1};
     },
     [](const TensorList& in) {
       return TensorList{in[0].index({in[1]}), in[0].masked_fill(in[1].unsqueeze(2), 3.5)};
     }},
    {"index_of_a_mask_beside_positions",
     [] {
       return TensorList{make_leaf({5, 6, 3}, 1), make_input({5, 6}, 2, kInt64, 0.0, 2.0) == 1,
                         tensor<std::int64_t>({-1})};
     },
     [](const TensorList& in) {
       return TensorList{in[0].index({in[1], in[2]})};
     }},
    {"order_statistics",
     [] {
       return TensorList{make_leaf({5, 8, 3}, 1)};
     },
     [](const TensorList& in) {
       return TensorList{median(in[0]), median(in[0], 1).values, kthvalue(in[0], 3, 0).values};
     }},
    {"embedding_bag", indexed({6, 8}, {50}, 6),
     [](const TensorList& in) {
       return TensorList{embedding_bag(in[0], in[1].view({5, 10})), embedding_bag(in[0], in[1], arange(5) * 7)};
     },
     4.0},
    {"index_put",
     [] {
       return TensorList{make_leaf({5, 6}, 1), make_leaf({8, 6}, 2), make_input({8}, 3, kInt64, 0.0, 5.0)};
     },
     [](const TensorList& in) {
       return TensorList{index_put(in[0], {in[2]}, in[1]), index_put(in[0], {in[2]}, in[1], true)};
     },
     4.0},
    {"embedding_by_frequency", indexed({6, 8}, {50}, 6),
     [](const TensorList& in) {
       return TensorList{embedding(in[0], in[1], EmbeddingLookup{.scale_grad_by_freq = true})};
     },
     4.0},
    {"dropout2d",
     [] {
       return TensorList{make_leaf({5, 6, 3, 7}, 1)};
     },
     [](const TensorList& in) { return TensorList{dropout2d(in[0], 0.3)}; }},
};

class CudaIndex : public ::testing::TestWithParam<OpCase> {};
TEST_P(CudaIndex, AgreesWithTheCpu) {
  check_on_device(GetParam());
}
INSTANTIATE_TEST_SUITE_P(Ops, CudaIndex, ::testing::ValuesIn(kCases), [](const auto& i) { return i.param.name; });

TEST(CudaDropout, TakesTheStepFromTheDevice) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor x = make_input({5, 77}, 1, kFloat32);
  const Tensor step = move_values(tensor<std::int64_t>({7}), test_device());
  for (const double p : {0.25, 0.5}) {
    Tensor expected, actual;
    {
      const RandomKeyGuard guard(7, 2);
      expected = dropout(x, p);
    }
    {
      const RandomKeyGuard guard(0, 2);
      const DeviceRandomStep from_device(step);
      actual = dropout(move_values(x, test_device()), p);
      EXPECT_TRUE(from_device.used());
    }
    expect_close(actual, expected, 0.0, 0.0);
  }
}

TEST(CudaIntegerSums, AreExact) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  constexpr std::int64_t kBig = (std::int64_t{1} << 53) + 1;  // no double is
  const auto there = [](const Tensor& x) { return move_values(x, test_device()); };
  const Tensor index = there(arange(3000, kLong).remainder(3)), terms = there(full({3000, 5}, kBig, kLong));
  const Tensor sums = index_add(there(zeros({3, 5}, kLong)), 0, index, terms);
  EXPECT_EQ(sums.to_vector<std::int64_t>(), std::vector<std::int64_t>(15, 1000 * kBig));
  const Tensor wide = index.unsqueeze(1).expand({3000, 5}).contiguous();
  EXPECT_EQ(scatter_add(there(zeros({3, 5}, kLong)), 0, wide, terms).to_vector<std::int64_t>(),
            std::vector<std::int64_t>(15, 1000 * kBig));
  const Tensor few = scatter_add(there(ones({2, 5}, kLong)), 0, there(zeros({2, 5}, kLong)), terms.slice(0, 0, 2));
  EXPECT_EQ(few[0][4].item<std::int64_t>(), 1 + 2 * kBig);
}

TEST(CudaIndexOutOfRange, ShowsAsNan) {
  LOCKSTEP_SKIP_WITHOUT_TEST_DEVICE();
  const Tensor index = move_values(tensor(std::vector<std::int64_t>{1, 3, -1, 0}), test_device());
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16})
    for (const std::int64_t width : {5, 16}) {
      Tensor x = move_values(make_input({3, width}, 1, dtype), test_device());
      x.set_requires_grad(true);
      const Tensor y = index_select(x, 0, index);
      const auto values = y.to_vector<double>();
      for (std::int64_t row = 0; row < 4; ++row)
        for (std::int64_t i = 0; i < width; ++i)
          EXPECT_EQ(std::isnan(values[static_cast<std::size_t>(row * width + i)]), row == 1 || row == 2);
      y.sum().backward();  // ones to rows 0 and 1, none elsewhere
      const auto gradients = x.grad().to_vector<double>();
      for (std::int64_t i = 0; i < 3 * width; ++i)
        EXPECT_EQ(gradients[static_cast<std::size_t>(i)], i < 2 * width ? 1.0 : 0.0);
      const Tensor column = gather(x.detach(), 0, index.view({4, 1}));
      EXPECT_TRUE(std::isnan(column.to_vector<double>()[1]));
    }
}

}  // namespace
}  // namespace lockstep::testing
