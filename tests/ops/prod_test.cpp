// prod() is compared with the product in order; other properties are in program_cases_test.cpp.

#include <cmath>
#include <cstdint>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/thread_pool.h"
#include "tests/support/pending_values.h"

namespace lockstep {
namespace {

using testing::bits;
using testing::make_input;

/// Factors around 1, some of them negative.
Tensor factors(const Shape& sizes, DType dtype) {
  return (make_input(sizes, 7, kFloat64) * 0.01 + 1.0).to(dtype);
}

double in_order(const std::vector<double>& x, std::int64_t first, std::int64_t count, std::int64_t step) {
  double product = 1;
  for (std::int64_t i = 0; i < count; ++i) product *= x[static_cast<std::size_t>(first + i * step)];
  return product;
}

TEST(Prod, IsTheProductAlongRowsAndColumns) {
  for (const DType dtype : {kFloat64, kFloat32, kBFloat16})
    for (const Shape& sizes : {Shape{3, 5}, Shape{2, 16}, Shape{4, 131}, Shape{70, 67}, Shape{1, 70000}}) {
      const Tensor x = factors(sizes, dtype);
      const Tensor rows = prod(x, 1).to(kFloat64), columns = prod(x, 0).to(kFloat64);
      const std::vector<double> values = x.to(kFloat64).to_vector<double>();
      const double tolerance = dtype == kFloat64 ? 1e-9 : dtype == kFloat32 ? 1e-6 : 8e-3;
      for (std::int64_t i = 0; i < sizes[0]; ++i) {
        const double expected = in_order(values, i * sizes[1], sizes[1], 1);
        EXPECT_NEAR(rows.to_vector<double>()[static_cast<std::size_t>(i)], expected, tolerance * std::fabs(expected));
      }
      for (std::int64_t i = 0; i < sizes[1]; i += 97) {
        const double expected = in_order(values, i, sizes[0], sizes[1]);
        EXPECT_NEAR(columns.to_vector<double>()[static_cast<std::size_t>(i)], expected,
                    tolerance * std::fabs(expected));
      }
    }
}

TEST(Prod, IsFiniteWhereTheProductInOrderIs) {
  std::vector<double> values;
  for (int i = 0; i < 20; ++i) values.insert(values.end(), {1e300, 1e-300});
  values.push_back(3);
  const Tensor x = tensor<double>(values);
  EXPECT_NEAR(prod(x).item<double>(), 3, 1e-12);
  EXPECT_NEAR(prod(x.view({1, 41, 1}).expand({1, 41, 2}), 1).to_vector<double>()[1], 3, 1e-12);
  EXPECT_EQ(prod(tensor<float>({1e30f, 1e30f})).item<float>(), INFINITY);
  EXPECT_TRUE(std::isnan(prod(tensor<float>({1e30f, NAN})).item<float>()));
  EXPECT_EQ(prod(tensor<float>({-0.0f, 2.0f})).item<float>(), 0.0f);
}

TEST(Prod, OfIntegersWrapsAround) {
  std::vector<std::int64_t> values(67, 3);
  std::uint64_t expected = 1;
  for (int i = 0; i < 67; ++i) expected *= 3;
  EXPECT_EQ(prod(tensor<std::int64_t>(values)).item<std::int64_t>(), static_cast<std::int64_t>(expected));
}

TEST(Prod, BitsDoNotDependOnThreads) {
  const int before = num_threads();
  for (const Shape& sizes : {Shape{1, 300000}, Shape{300, 1000}}) {
    const Tensor x = factors(sizes, kFloat32);
    set_num_threads(1);
    const auto rows = bits(prod(x, 1)), columns = bits(prod(x, 0));
    for (const int threads : {2, 3}) {
      set_num_threads(threads);
      EXPECT_EQ(bits(prod(x, 1)), rows);
      EXPECT_EQ(bits(prod(x, 0)), columns);
    }
  }
  set_num_threads(before);
}

TEST(OneHot, HasAOneWhereTheIndexSays) {
  const Tensor x = tensor<std::int64_t>({2, 0, 3, 3, 1, 2}).view({2, 3}).transpose(0, 1);
  const Tensor out = one_hot(x, 5);
  ASSERT_EQ(out.sizes(), Shape({3, 2, 5}));
  const Tensor expected = eq(x.unsqueeze(-1), tensor<std::int64_t>({0, 1, 2, 3, 4})).to(kInt64);
  EXPECT_EQ(out.to_vector<std::int64_t>(), expected.to_vector<std::int64_t>());
}

TEST(ScatterAdd, AddsToTheTensorTermAfterTerm) {
  // Terms that meet each other before they meet the tensor would give 2^24 + 2.
  const Tensor x = tensor<float>({16777216.0f, 0.0f});
  const Tensor out = scatter_add(x, 0, tensor<std::int64_t>({0, 0, 1}), tensor<float>({1.0f, 1.0f, 5.0f}));
  EXPECT_EQ(out.to_vector<float>(), (std::vector<float>{16777216.0f, 5.0f}));
  EXPECT_EQ(x.to_vector<float>(), (std::vector<float>{16777216.0f, 0.0f}));
}

}  // namespace
}  // namespace lockstep
