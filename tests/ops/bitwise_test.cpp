// Operations on bits and signs, and functions that are made of others; expected values are PyTorch's.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/autograd/ops.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using Integers = std::vector<std::int64_t>;

TEST(Bitwise, IntegersPromoteAndBroadcast) {
  const Tensor a = tensor<std::int64_t>({1, -8, 12}), b = tensor<std::int32_t>({3, 5, 10});
  EXPECT_EQ((a & b).to_vector<std::int64_t>(), (Integers{1, 0, 8}));
  EXPECT_EQ((a | b).to_vector<std::int64_t>(), (Integers{3, -3, 14}));
  EXPECT_EQ((a ^ b).to_vector<std::int64_t>(), (Integers{2, -3, 6}));
  EXPECT_EQ((~a).to_vector<std::int64_t>(), (Integers{-2, 7, -13}));
  EXPECT_EQ((a & b).dtype(), kInt64);
  EXPECT_EQ((b & 6).to_vector<std::int64_t>(), (Integers{2, 4, 2}));
  EXPECT_EQ((b & 6).dtype(), kInt32);
  EXPECT_EQ((a.view({3, 1}) | b).sizes(), Shape({3, 3}));
  EXPECT_EQ((~tensor<std::uint8_t>({1, 2})).to_vector<std::int64_t>(), (Integers{254, 253}));
  EXPECT_EQ((tensor({true, false}) & tensor<std::int64_t>({3, 3})).to_vector<std::int64_t>(), (Integers{1, 0}));
}

TEST(Bitwise, BoolTensorsAreLogic) {
  const Tensor a = tensor({true, true, false}), b = tensor({true, false, false});
  EXPECT_EQ((a & b).to_vector<bool>(), (std::vector<bool>{true, false, false}));
  EXPECT_EQ((a | b).to_vector<bool>(), (std::vector<bool>{true, true, false}));
  EXPECT_EQ((a ^ b).to_vector<bool>(), (std::vector<bool>{false, true, false}));
  EXPECT_EQ((~a).to_vector<bool>(), (std::vector<bool>{false, false, true}));
  EXPECT_EQ((a & true).dtype(), kBool);
}

TEST(Bitwise, ShiftsLoseWhatLeavesTheNumber) {
  const Tensor a = tensor<std::int64_t>({1, 2, -5});
  EXPECT_EQ((a << tensor<std::int64_t>({63, 64, 1})).to_vector<std::int64_t>(),
            (Integers{std::numeric_limits<std::int64_t>::min(), 0, -10}));
  EXPECT_EQ((a << -1).to_vector<std::int64_t>(), (Integers{0, 0, 0}));
  EXPECT_EQ((a >> 1).to_vector<std::int64_t>(), (Integers{0, 1, -3}));
  EXPECT_EQ((a >> 64).to_vector<std::int64_t>(), (Integers{0, 0, -1}));
  EXPECT_EQ((a >> -1).to_vector<std::int64_t>(), (Integers{0, 0, -1}));
  EXPECT_EQ((tensor<std::uint8_t>({129}) << 1).to_vector<std::int64_t>(), (Integers{2}));
  EXPECT_EQ((tensor<std::int32_t>({1}) << 35).to_vector<std::int64_t>(), (Integers{0}));
}

TEST(Bitwise, OtherDtypesAreRefused) {
  EXPECT_NE(error_of([] {
              zeros({2}) & zeros({2}, {.dtype = kInt64});
            }).find("[bitwise_and] expected bool or integer tensors, found float32"),
            std::string::npos);
  EXPECT_NE(error_of([] { tensor({true}) << 1.5; }).find("[bitwise_left_shift] expected bool or integer"),
            std::string::npos);
  EXPECT_NE(error_of([] { tensor({true}) >> tensor({true}); }).find("not defined for bool"), std::string::npos);
  EXPECT_NE(error_of([] { Tensor() | zeros({2}); }).find("undefined"), std::string::npos);
}

TEST(Copysign, TakesEverySign) {
  const Tensor a = tensor<double>({0.0, -0.0, 1.0, -2.0}).requires_grad_();
  const Tensor b = tensor<double>({-1.0, 1.0, -0.0, 0.0}).requires_grad_();
  const Tensor c = copysign(a, b);
  const std::vector<double> values = c.to_vector<double>();
  EXPECT_EQ(values, (std::vector<double>{0, 0, -1, 2}));
  EXPECT_TRUE(std::signbit(values[0]));
  EXPECT_FALSE(std::signbit(values[1]));
  c.sum().backward();
  EXPECT_EQ(a.grad().to_vector<double>(), (std::vector<double>{0, 0, -1, -1}));
  EXPECT_EQ(b.grad().to_vector<double>(), (std::vector<double>{0, 0, 0, 0}));
  EXPECT_EQ(copysign(tensor<std::int64_t>({1, 2}), -1.0).dtype(), kFloat32);
  EXPECT_EQ(copysign(ones({2}, kFloat16), tensor<std::int64_t>({-1, 1})).dtype(), kFloat16);
  const std::int32_t least = std::numeric_limits<std::int32_t>::min();
  EXPECT_EQ(copysign(tensor<std::int32_t>({least}), 1.0).item<double>(), 2147483648.0);
  EXPECT_EQ(copysign(tensor<std::int64_t>({1, 2}), tensor<std::int64_t>({-1, 1})).to_vector<double>(),
            (std::vector<double>{-1, 2}));
}

TEST(Heaviside, IsAStep) {
  const Tensor x = tensor<double>({0.0, -0.0, 1.0, -2.0, NAN});
  EXPECT_EQ(heaviside(x, tensor<double>({0.5})).to_vector<double>(), (std::vector<double>{0.5, 0.5, 1, 0, 0}));
  EXPECT_NE(error_of([&] { heaviside(x, tensor<std::int64_t>({2})); }).find("[heaviside] expected two tensors"),
            std::string::npos);
}

TEST(Erfc, KeepsTheDigitsOfSmallValues) {
  std::vector<double> at;
  for (double x = -7.0; x < 27.3; x += 0.0137) at.push_back(x);
  const std::vector<double> values = erfc(tensor(at)).to_vector<double>();
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double expected = std::erfc(at[i]);
    const double allowed = expected < 1e-300 ? 1e-310 : 4e-15 * expected;
    ASSERT_NEAR(values[i], expected, allowed) << at[i];
  }
  const Tensor x = tensor<float>({-INFINITY, 0.0f, 5.0f, 9.0f, INFINITY, NAN});
  const std::vector<float> floats = erfc(x).to_vector<float>();
  EXPECT_EQ(floats[0], 2.0f);
  EXPECT_EQ(floats[1], 1.0f);
  EXPECT_FLOAT_EQ(floats[2], std::erfc(5.0f));
  EXPECT_FLOAT_EQ(floats[3], std::erfc(9.0f));
  EXPECT_EQ(floats[4], 0.0f);
  EXPECT_TRUE(std::isnan(floats[5]));
}

TEST(MatrixNorm, OfColumnsAndRows) {
  const Tensor x = tensor<double>({1, -2, 3, -4, 5, -6}).view({2, 3});
  EXPECT_EQ(linalg::matrix_norm(x, 1).item<double>(), 9.0);
  EXPECT_EQ(linalg::matrix_norm(x, -1).item<double>(), 5.0);
  EXPECT_EQ(linalg::matrix_norm(x, INFINITY).item<double>(), 15.0);
  EXPECT_EQ(linalg::matrix_norm(x, -INFINITY).item<double>(), 6.0);
  EXPECT_EQ(linalg::matrix_norm(x).item<double>(), std::sqrt(91.0));
  EXPECT_EQ(linalg::norm(x).item<double>(), std::sqrt(91.0));
  EXPECT_EQ(linalg::norm(x, 1).item<double>(), 9.0);
  EXPECT_EQ(linalg::norm(x, "fro").item<double>(), std::sqrt(91.0));
  EXPECT_EQ(linalg::norm(x, 1, {1}).to_vector<double>(), (std::vector<double>{6, 15}));
  EXPECT_EQ(linalg::vector_norm(x, 1).item<double>(), 21.0);
  const Tensor batch = x.view({2, 1, 3}).expand({2, 4, 3});
  EXPECT_EQ(linalg::matrix_norm(batch, 1, {0, 2}).sizes(), Shape({4}));
  EXPECT_EQ(linalg::matrix_norm(batch, 1, {2, 0}, true).sizes(), Shape({1, 4, 1}));
  EXPECT_EQ(linalg::matrix_norm(batch, INFINITY, {2, 0})[0].item<double>(), 9.0);
  EXPECT_NE(error_of([&] {
              linalg::matrix_norm(x, 3);
            }).find("expected \"fro\", \"nuc\", 1, -1, 2, -2 or an infinity, found 3"),
            std::string::npos);
  EXPECT_NE(error_of([&] { linalg::matrix_norm(x, "max"); }).find("found \"max\""), std::string::npos);
  EXPECT_NE(error_of([&] { linalg::matrix_norm(x, 1, {1, -1}); }).find("two different dimensions"), std::string::npos);
  EXPECT_NE(error_of([&] { linalg::matrix_norm(x[0]); }).find("two dimensions that it has"), std::string::npos);
}

TEST(InstanceNorm, IsAGroupAChannel) {
  const Tensor x = make_input({2, 3, 4, 5}, 7, kFloat64), weight = make_input({3}, 8, kFloat64);
  EXPECT_TRUE(instance_norm(x, {.weight = weight}).equal(group_norm(x, 3, {.weight = weight})));
  expect_close(instance_norm(x).mean({2, 3}), zeros({2, 3}, kFloat64), 0.0, 1e-12);
  EXPECT_NE(error_of([] {
              instance_norm(zeros({2, 3}));
            }).find("expected an input [N, C, ...], found [2, 3]"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
