// div() with a RoundingMode.

#include <cmath>
#include <limits>

#include "lockstep/autograd/ops/binary/binary.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

// Quotients away from whole numbers, where rounding to a half type would change the result.
Tensor dividends() {
  return cast_values(tensor<double>({7.5, -7.5, 0.25, -0.25, 9.5, 3.5}), kFloat64);
}
Tensor divisors() {
  return tensor<double>({2, 2, -4, 4, -3, 0.75});
}

void check(RoundingMode mode, double (*round)(double)) {
  const auto run = [=](const Tensor& a, const Tensor& b) { return TensorList{div(a, b, mode)}; };
  check_op({.name = "",
            .inputs =
                [] {
                  const Tensor a = dividends(), b = divisors();
                  a.set_requires_grad(true);
                  b.set_requires_grad(true);
                  return TensorList{a, b};
                },
            .run = [=](const TensorList& in) { return run(in[0], in[1]); },
            .expected =
                [=](const TensorList& in) {
                  std::vector<double> a = in[0].to_vector<double>();
                  const std::vector<double> b = in[1].to_vector<double>();
                  for (std::size_t i = 0; i < a.size(); ++i) a[i] = round(a[i] / b[i]);
                  return TensorList{tensor(a)};
                }});
}

TEST(RoundedDivision, TowardsZero) {
  check(RoundingMode::trunc, std::trunc);
}
TEST(RoundedDivision, Downwards) {
  check(RoundingMode::floor, std::floor);
}

TEST(RoundedDivision, IntegersStayIntegers) {
  const Tensor a = tensor<std::int64_t>({7, -7, 7, -7, 6, std::numeric_limits<std::int64_t>::min()});
  const Tensor b = tensor<std::int64_t>({2, 2, -2, -2, -3, -1});
  EXPECT_EQ(div(a, b, RoundingMode::trunc).to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{3, -3, -3, 3, -2, std::numeric_limits<std::int64_t>::min()}));
  EXPECT_EQ(div(a, b, RoundingMode::floor).to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{3, -4, -4, 3, -2, std::numeric_limits<std::int64_t>::min()}));
  EXPECT_EQ(a.div(2, RoundingMode::floor).dtype(), kInt64);
  EXPECT_EQ(div(tensor<std::uint8_t>({9}), 2, RoundingMode::trunc).dtype(), kUInt8);
  EXPECT_EQ(a.div(2.0, RoundingMode::floor).dtype(), kFloat32);
  EXPECT_EQ(div(7, tensor<std::int64_t>({2}), RoundingMode::floor).item<std::int64_t>(), 3);
}

// As Python's //: 0.1 is a little more than a tenth.
TEST(RoundedDivision, FloorLooksAtTheRemainder) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor a = tensor<double>({1.0, -1.0, 1.0, 0.0, infinity, -1e-300});
  const Tensor b = tensor<double>({0.1, 0.1, 0.0, -2.0, 2.0, 1.0});
  const std::vector<double> out = div(a, b, RoundingMode::floor).to_vector<double>();
  EXPECT_EQ(out[0], 9.0);
  EXPECT_EQ(out[1], -10.0);
  EXPECT_EQ(out[2], infinity);
  EXPECT_TRUE(out[3] == 0.0 && std::signbit(out[3]));
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(out[5], -1.0);
}

// Rows whose quotients are all of moderate size are computed without fmod(), and have its bits.
template <typename T>
void check_rows() {
  std::vector<T> a, b;
  for (int i = 0; i < 2000; ++i) {
    const T x = static_cast<T>((i * 7919) % 2003 - 1001) / T(16), y = static_cast<T>((i * 104729) % 997 - 498) / T(32);
    a.push_back(i % 3 == 0 ? std::nextafter(x, T(0)) : (i % 3 == 1 ? x * T(1.1) : x));
    b.push_back(y == T(0) ? T(0.1) : y);
  }
  const auto compare = [&] {
    const std::vector<T> rests = remainder(tensor(a), tensor(b)).template to_vector<T>();
    const std::vector<T> fractions = fmod(tensor(a), tensor(b)).template to_vector<T>();
    const std::vector<T> quotients = div(tensor(a), tensor(b), RoundingMode::floor).template to_vector<T>();
    for (std::size_t i = 0; i < a.size(); ++i) {
      const T rest = std::fmod(a[i], b[i]);
      const bool below = rest != T(0) && (rest < T(0)) != (b[i] < T(0));
      const T expected = below ? rest + b[i] : rest;
      const T quotient = (a[i] - rest) / b[i] - (below ? T(1) : T(0));
      const T whole = quotient == T(0) ? std::copysign(T(0), a[i] / b[i]) : std::round(quotient);
      ASSERT_TRUE(fractions[i] == rest && std::signbit(fractions[i]) == std::signbit(rest)) << a[i] << ", " << b[i];
      ASSERT_TRUE(rests[i] == expected && std::signbit(rests[i]) == std::signbit(expected)) << a[i] << " % " << b[i];
      ASSERT_TRUE(quotients[i] == whole && std::signbit(quotients[i]) == std::signbit(whole)) << a[i] << " / " << b[i];
    }
  };
  compare();
  b[7] = std::numeric_limits<T>::infinity();  // of no size at all
  b[8] = -b[7];
  compare();
  for (const double number : {0.3, -7.0}) {
    const std::vector<T> by_number = fmod(tensor(a), number).template to_vector<T>();
    for (std::size_t i = 0; i < a.size(); ++i) ASSERT_EQ(by_number[i], std::fmod(a[i], static_cast<T>(number)));
  }
  a[1000] = std::numeric_limits<T>::max();  // and so is every element beside one that is not
  compare();
}

TEST(RoundedDivision, RowsHaveTheBitsOfFmod) {
  check_rows<float>();
  check_rows<double>();
}

TEST(RoundedDivision, Errors) {
  const Tensor zero = tensor<std::int64_t>({1, 0});
  EXPECT_NE(error_of([&] { div(zero, zero, RoundingMode::floor); }).find("[div] integers are divided by 0"),
            std::string::npos);
  EXPECT_NE(error_of([&] { zero.div(0, RoundingMode::trunc); }).find("[div] integers are divided by 0"),
            std::string::npos);
  const Tensor truth = ones({1}, {.dtype = kBool});
  EXPECT_NE(error_of([&] { div(truth, truth, RoundingMode::trunc); }).find("not defined for bool"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
