// cummax(), cummin() and logcumsumexp().

#include <cmath>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "lockstep/autograd/ops/scan/scan.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/vector_math.h"
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

// Lines are gone through together, and each has the bits that it has alone, whatever its neighbours hold.
TEST(LogCumsumExp, LinesTogetherAreAsEachAlone) {
  const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const Shape& sizes : {Shape{1, 40}, Shape{3, 9}, Shape{4, 9}, Shape{37, 33}})
    for (const DType dtype : {kFloat32, kFloat64, kBFloat16})
      for (const bool special : {false, true})
        for (const int dim : {0, 1}) {
          const Tensor plain = make_input(sizes, 3, kFloat64);
          double* const values = plain.data<double>();
          for (std::int64_t i = 0; special && i < plain.numel(); i += 5)
            values[i] = i % 3 == 0    ? infinity
                        : i % 7 == 0  ? -infinity
                        : i % 11 == 0 ? nan
                                      : 900.0 - 13.0 * static_cast<double>(i);
          const Tensor x = plain.to(dtype), out = logcumsumexp(x, dim);
          const std::vector<double> from = x.to_vector<double>(), found = out.to_vector<double>();
          std::vector<double> expected;
          for (std::int64_t line = 0; line < sizes[1 - dim]; ++line) {
            double sum = -infinity;
            for (std::int64_t i = 0; i < sizes[dim]; ++i) {
              const std::int64_t at = dim == 0 ? i * sizes[1] + line : line * sizes[1] + i;
              const double value = from[static_cast<std::size_t>(at)];
              const bool takes = value > sum || value != value;
              const double high = takes ? value : sum, low = takes ? sum : value;
              sum = high == low && std::isinf(high) ? high : high + math::log1p_any(math::exp(low - high));
              const double rounded = full({}, sum, {.dtype = kFloat64}).to(dtype).to(kFloat64).item<double>();
              const double seen = found[static_cast<std::size_t>(at)];
              ASSERT_TRUE(seen == rounded || (seen != seen && rounded != rounded))
                  << to_string(sizes) << " " << name(dtype) << " " << dim << " " << at << ": " << seen << " "
                  << rounded;
            }
          }
        }
}

}  // namespace
}  // namespace lockstep::testing
