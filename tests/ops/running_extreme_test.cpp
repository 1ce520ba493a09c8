// cummax() and cummin().

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "lockstep/autograd/ops/scan/scan.h"
#include "lockstep/core/profile.h"
#include "tests/support/op_case.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

/// Element by element, from the definition.
void expect_extremes(const Tensor& x, int dim, bool largest) {
  SCOPED_TRACE(std::string(name(x.dtype())) + to_string(x.sizes()) + (largest ? " max " : " min ") +
               std::to_string(dim));
  const TopK found = largest ? cummax(x, dim) : cummin(x, dim);
  ASSERT_EQ(found.values.dtype(), x.dtype());
  const std::vector<double> from = x.to_vector<double>(), values = found.values.to_vector<double>();
  const std::vector<std::int64_t> places = found.indices.to_vector<std::int64_t>();
  const std::int64_t length = x.size(dim), inner = contiguous_strides(x.sizes())[dim];
  for (std::int64_t at = 0; at < x.numel(); ++at) {
    const std::int64_t position = at / inner % length, first = at - position * inner;
    std::int64_t best = 0;
    for (std::int64_t i = 1; i <= position; ++i) {
      const double value = from[static_cast<std::size_t>(first + i * inner)],
                   before = from[static_cast<std::size_t>(first + best * inner)];
      if (std::isnan(value) || (largest ? value >= before : value <= before)) best = i;
    }
    ASSERT_EQ(places[static_cast<std::size_t>(at)], best) << at;
    const double expected = from[static_cast<std::size_t>(first + best * inner)];
    const double value = values[static_cast<std::size_t>(at)];
    ASSERT_TRUE(value == expected || (std::isnan(value) && std::isnan(expected))) << at;
  }
}

TEST(RunningExtreme, OfEveryDtypeAlongEveryDimension) {
  for (const DType dtype : {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool})
    for (const Shape& sizes : {Shape{9}, Shape{5, 70}, Shape{3, 7, 5}, Shape{4, 1}, Shape{0, 3}, Shape{65, 3}}) {
      const Tensor x = cast_values(make_input(sizes, 3, kFloat64, dtype == kUInt8 ? 0 : -5, 5), kInt64).to(dtype);
      for (int d = 0; d < x.dim(); ++d)
        for (const bool largest : {true, false}) {
          expect_extremes(x, d, largest);
          expect_extremes(make_strided(x), d, largest);
        }
    }
}

TEST(RunningExtreme, ANanStays) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Tensor row = tensor<double>({-infinity, 1, -0.0, 0.0, NAN, infinity, NAN, 2});
  for (const Tensor& x : {row, row.view({8, 1}).expand({8, 3}).contiguous().to(kFloat32)})
    for (const bool largest : {true, false}) expect_extremes(x, 0, largest);
}

TEST(RunningExtreme, Gradients) {
  for (const Shape& sizes : {Shape{6}, Shape{4, 5}, Shape{}})
    check_op({.name = "",
              .inputs = [&] { return TensorList{make_leaf(sizes)}; },
              .run =
                  [](const TensorList& in) {
                    return TensorList{cummax(in[0], 0).values, cummin(in[0], -1).values};
                  },
              .halves = false});  // which merge neighbours, so that others are taken
}

TEST(RunningExtreme, ThreadsDoNotChangeBits) {
  for (const int dim : {0, 1})
    check_threads({.name = "",
                   .inputs =
                       [] {
                         return TensorList{make_leaf({200, 301})};
                       },
                   .run = [=](const TensorList& in) { return TensorList{cummax(in[0], dim).values}; }});
}

TEST(RunningExtreme, AProfileNamesWhatWasCalled) {
  const TemporaryPath path;
  start_profile(path.text());
  cummin(ones({3}), 0);
  stop_profile();
  std::ifstream file(path.text());
  const std::string trace{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(trace.find("\"cummin\""), std::string::npos);
  EXPECT_EQ(trace.find("cummax"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
