// clamp() with bounds that are tensors, and with one whole number.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/unary/unary.h"
#include "tests/support/op_case.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

TensorList clamped(const TensorList& in) {
  return {clamp(in[0], in[1], in[2])};
}

TensorList plain(const TensorList& in) {
  const Tensor out = empty(in[0].sizes(), {.dtype = kFloat64});
  const Tensor min = in[1].expand(in[0].sizes()), max = in[2].expand(in[0].sizes());
  const std::vector<double> x = in[0].to_vector<double>(), a = min.to_vector<double>(), b = max.to_vector<double>();
  for (std::size_t i = 0; i < x.size(); ++i) out.data<double>()[i] = std::min(std::max(x[i], a[i]), b[i]);
  return {out};
}

TEST(ClampTensors, ValuesAndGradients) {
  for (const Shape& bound : {Shape{3, 5}, Shape{5}, Shape{3, 1}, Shape{}}) {
    SCOPED_TRACE(to_string(bound));
    check_op({.name = "",
              .inputs =
                  [=] {
                    return TensorList{make_leaf({3, 5}), make_leaf(bound, 2, kFloat64, -1, 0),
                                      make_leaf(bound, 3, kFloat64, 0, 1)};
                  },
              .run = clamped,
              .expected = plain});
  }
  check_op({.name = "the maximum is below the minimum",
            .inputs =
                [] {
                  return TensorList{make_leaf({3, 5}), make_leaf({5}, 2, kFloat64, 0, 1),
                                    make_leaf({5}, 3, kFloat64, -1, 0)};
                },
            .run = clamped,
            .expected = plain});
}

TEST(ClampTensors, OneBoundIsEnough) {
  const Tensor x = make_input({4}), bound = make_input({4}, 2);
  expect_close(x.clamp(bound, Tensor()), maximum(x, bound), 0, 0);
  expect_close(x.clamp(Tensor(), bound), minimum(x, bound), 0, 0);
  EXPECT_NE(error_of([&] { x.clamp(Tensor(), Tensor()); }).find("[clamp] expected at least one bound"),
            std::string::npos);
}

TEST(ClampNumbers, WholeBoundsOfIntegersAreExact) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max(), kNoDouble = (std::int64_t{1} << 53) + 1;
  using Integers = std::vector<std::int64_t>;
  const Tensor x = tensor<std::int64_t>({-kMost, 5, kMost});
  EXPECT_EQ(clamp_max(x, kMost).to_vector<std::int64_t>(), (Integers{-kMost, 5, kMost}));
  EXPECT_EQ(clamp_min(x, kNoDouble).to_vector<std::int64_t>(), (Integers{kNoDouble, kNoDouble, kMost}));
  EXPECT_EQ(x.clamp_max(-kNoDouble).to_vector<std::int64_t>(), (Integers{-kMost, -kNoDouble, -kNoDouble}));
  x.clamp_min_(-kNoDouble).clamp_max_(kNoDouble);
  EXPECT_EQ(x.to_vector<std::int64_t>(), (Integers{-kNoDouble, 5, kNoDouble}));
  EXPECT_EQ(clamp_min(tensor<bool>({true}), true).dtype(), kInt64);
  EXPECT_NE(error_of([] { clamp_min(tensor<std::uint8_t>({1}), -1); }).find("[clamp_min] -1 is out of the range"),
            std::string::npos);
}

// Doubles beyond 2^53 are whole numbers too.
TEST(ClampNumbers, WholeDoublesOfAnySizeKeepIntegers) {
  constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::lowest(), kNoDouble = (std::int64_t{1} << 53) + 1;
  using Integers = std::vector<std::int64_t>;
  const Tensor x = tensor<std::int64_t>({kNoDouble, -5, kLowest});
  EXPECT_EQ(clamp(x, 0, 0x1p62).to_vector<std::int64_t>(), (Integers{kNoDouble, 0, 0}));
  EXPECT_EQ(clamp(x, -0x1p63, 100).to_vector<std::int64_t>(), (Integers{100, -5, kLowest}));
  for (const double bound : {0x1p53, 0x1p62})
    EXPECT_NE(error_of([&] { clamp(tensor<std::int32_t>({7}), 0, bound); }).find("is out of the range of int32"),
              std::string::npos);
}

TEST(ClampTensors, BoundsPromoteAndNanStays) {
  EXPECT_EQ(arange(3).clamp(tensor<float>({0.5F}), Tensor()).dtype(), kFloat32);
  const Tensor out = clamp(tensor<double>({1, NAN, 2}), tensor<double>({NAN, 0, 3}), tensor<double>({5, 5, 5}));
  expect_close(out, tensor<double>({NAN, NAN, 3}), 0, 0);
}

}  // namespace
}  // namespace lockstep::testing
