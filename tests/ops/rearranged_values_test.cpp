// What moves, picks out or counts elements, against plain loops, where kernels take many elements at a time.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/unary/special_functors.h"
#include "lockstep/core/random.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using Doubles = std::vector<double>;

/// x [a, b, c], row-major, read backwards along the dimensions with a true.
Doubles flipped(const Doubles& x, const Shape& sizes, const bool (&backwards)[3]) {
  Doubles out;
  for (std::int64_t i = 0; i < sizes[0]; ++i)
    for (std::int64_t j = 0; j < sizes[1]; ++j)
      for (std::int64_t k = 0; k < sizes[2]; ++k) {
        const std::int64_t a = backwards[0] ? sizes[0] - 1 - i : i, b = backwards[1] ? sizes[1] - 1 - j : j,
                           c = backwards[2] ? sizes[2] - 1 - k : k;
        out.push_back(x[static_cast<std::size_t>((a * sizes[1] + b) * sizes[2] + c)]);
      }
  return out;
}

TEST(Flip, EveryDimensionOfEveryLayoutAndDtype) {
  for (const Shape& sizes : {Shape{2, 3, 5}, Shape{3, 1, 70}, Shape{1, 1, 40000}, Shape{5, 40, 3}, Shape{1, 1, 1}})
    for (const DType dtype : {kFloat32, kFloat64, kBFloat16, kInt64, kBool}) {
      const Tensor plain = (make_input(sizes, 1, kFloat64) * 9.0).to(kInt64).to(dtype);
      for (const Tensor& x : {plain, plain.transpose(0, 2).contiguous().transpose(0, 2)})
        for (int mask = 0; mask < 8; ++mask) {
          const bool backwards[3] = {(mask & 1) != 0, (mask & 2) != 0, (mask & 4) != 0};
          Shape dims;
          for (int d = 0; d < 3; ++d)
            if (backwards[d]) dims.push_back(d);
          const Tensor out = flip(x, dims);
          EXPECT_EQ(out.dtype(), dtype);
          EXPECT_FALSE(out.storage() == x.storage());
          EXPECT_EQ(out.to(kFloat64).contiguous().to_vector<double>(),
                    flipped(x.to(kFloat64).contiguous().to_vector<double>(), sizes, backwards))
              << to_string(sizes) << " " << mask;
        }
    }
}

TEST(Flip, GradientsAreFlippedBackAndEmptyIsEmpty) {
  const Tensor x = make_leaf({2, 3, 4}), weights = make_input({2, 3, 4}, 7);
  (flip(x, {0, -1}) * weights).sum().backward();
  EXPECT_TRUE(equal(x.grad(), flip(weights, {0, 2})));
  EXPECT_EQ(flip(zeros({0, 3}), {0, 1}).sizes(), (Shape{0, 3}));
  EXPECT_EQ(flip(full({}, 2.0f), {0}).item<float>(), 2.0f);
  EXPECT_NE(error_of([] { flip(zeros({2}), {0, -1}); }).find("[flip] dimension"), std::string::npos);
}

template <typename T>
std::int64_t first_extreme(const std::vector<T>& values, bool largest) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < values.size(); ++i) {
    const T at = values[i], so_far = values[best];
    if (so_far != so_far) break;
    if (at != at || (largest ? at > so_far : at < so_far)) best = i;
  }
  return static_cast<std::int64_t>(best);
}

// Of equal values the first is named, and of all values the first NaN, wherever in the row.
TEST(ArgExtremes, OfRowsOfEveryLengthAreTheFirst) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinity = std::numeric_limits<double>::infinity();
  for (const std::int64_t width : {1, 2, 63, 64, 65, 100, 511, 512, 513, 1030, 2500})
    for (const DType dtype : {kFloat32, kFloat64, kBFloat16, kInt64})
      for (const bool special : {false, true}) {
        if (special && dtype == kInt64) continue;
        Tensor x = (make_input({7, width}, width, kFloat64) * 20.0).to(kInt64).to(kFloat64);  // many are equal
        double* values = x.data<double>();
        for (std::int64_t row = 0; special && row < 7; ++row) {
          double* const of_row = values + row * width;
          if (row == 0) std::fill_n(of_row, width, -infinity);
          if (row == 1) std::fill_n(of_row, width, infinity);
          if (row == 2) of_row[width - 1] = nan;
          if (row == 3) of_row[0] = nan;
          if (row == 4) of_row[width / 2] = nan, of_row[width - 1] = nan;
          if (row == 5)
            for (std::int64_t i = 0; i < width; ++i) of_row[i] = i % 2 == 0 ? -0.0 : 0.0;
          if (row == 6) of_row[width / 2] = infinity, of_row[width - 1] = -infinity;
        }
        const Tensor cast = x.to(dtype), strided = cast.transpose(0, 1).contiguous().transpose(0, 1);
        for (const bool largest : {false, true}) {
          std::vector<std::int64_t> expected;
          for (std::int64_t row = 0; row < 7; ++row)
            expected.push_back(
                first_extreme(cast.narrow(0, row, 1).to(kFloat64).contiguous().to_vector<double>(), largest));
          for (const Tensor& in : {cast, strided})
            EXPECT_EQ((largest ? argmax(in, 1) : argmin(in, 1)).to_vector<std::int64_t>(), expected)
                << width << " " << name(dtype) << " " << special;
        }
      }
}

// The gradient of an element is the sum over its places in the frame, in the frame's order; the last dimension first.
TEST(PadGradients, AreAddedUpInTheFramesOrder) {
  const auto source = [](std::int64_t at, std::int64_t size, PadMode mode) {
    if (mode == PadMode::replicate) return std::min(std::max<std::int64_t>(at, 0), size - 1);
    if (mode == PadMode::circular) return (at + size) % size;
    return at < 0 ? -at : at < size ? at : 2 * (size - 1) - at;
  };
  for (const PadMode mode : {PadMode::reflect, PadMode::replicate, PadMode::circular})
    for (const DType dtype : {kFloat32, kFloat64}) {
      constexpr std::int64_t kRows = 5, kColumns = 19;
      const Tensor x = make_input({3, kRows, kColumns}, 1, dtype).set_requires_grad(true);
      const Tensor y = pad(x, {3, 2, 1, 4}, mode), grad = make_input(y.sizes(), 2, dtype);
      y.backward(grad);
      Tensor columns = zeros({3, kRows + 5, kColumns}, {.dtype = dtype}), rows = zeros(x.sizes(), {.dtype = dtype});
      for (std::int64_t k = 0; k < kColumns + 5; ++k)
        columns.select(2, source(k - 3, kColumns, mode)).add_(grad.select(2, k));
      for (std::int64_t k = 0; k < kRows + 5; ++k)
        rows.select(1, source(k - 1, kRows, mode)).add_(columns.select(1, k));
      EXPECT_TRUE(equal(x.grad(), rows)) << static_cast<int>(mode) << " " << name(dtype);
    }
}

TEST(Counts, OfNumbersAndOfBinsAreThoseOfLoops) {
  for (const std::int64_t length : {1, 7, 1000, 5000, 70000})
    for (const std::int64_t n : {1, 3, 4, 1021, 30000}) {
      const Tensor x = randint(0, length, {n});
      std::vector<std::int64_t> expected(static_cast<std::size_t>(length));
      for (const std::int64_t value : x.to_vector<std::int64_t>()) ++expected[static_cast<std::size_t>(value)];
      EXPECT_EQ(bincount(x, {}, length).to_vector<std::int64_t>(), expected);
      EXPECT_EQ(bincount(x.to(kInt32), {}, length).to_vector<std::int64_t>(), expected);
      EXPECT_EQ(bincount(x.to(Device(kCPU, 1)), {}, length).device(), Device(kCPU, 1));
    }
  EXPECT_NE(error_of([] { bincount(tensor<std::int64_t>({3, -2})); }).find("found -2"), std::string::npos);
  const Tensor largest = tensor<std::int64_t>({3, std::numeric_limits<std::int64_t>::max()});
  EXPECT_NE(error_of([&] { bincount(largest); }).find("expected smaller numbers"), std::string::npos);
  EXPECT_NE(error_of([&] { bincount(largest, ones({2})); }).find("expected smaller numbers"), std::string::npos);
  Tensor values = make_input({3001}, 1, kFloat64) * 3.0;
  values.data<double>()[5] = std::numeric_limits<double>::quiet_NaN();
  values.data<double>()[6] = -1.0, values.data<double>()[7] = 2.0;
  for (const DType dtype : {kFloat32, kFloat64})
    for (const std::int64_t bins : {1, 2, 10, 700}) {
      Doubles expected(static_cast<std::size_t>(bins));
      const auto count = [&]<typename T>(T) {
        for (const double given : values.to_vector<double>()) {
          const T value = static_cast<T>(given);
          if (!(value >= T(-1) && value <= T(2))) continue;
          const auto bin = static_cast<std::int64_t>((value - T(-1)) * static_cast<T>(bins) / T(3));
          ++expected[static_cast<std::size_t>(std::min(bin, bins - 1))];
        }
      };
      dtype == kFloat32 ? count(0.0f) : count(0.0);
      EXPECT_EQ(histc(values.to(dtype), bins, -1.0, 2.0).to(kFloat64).to_vector<double>(), expected);
    }
}

TEST(Counts, AnEdgeIsInTheBinThatBeginsThere) {
  for (const DType dtype : {kFloat32, kFloat64})
    for (const double bound : {3.125, 0.78125}) {
      // 100 bins of 2^-4 or 2^-6: every edge is exact.
      const Tensor edges = (arange(100).to(kFloat64) * (bound / 50.0) - bound).to(dtype);
      EXPECT_TRUE(eq(histc(edges, 100, -bound, bound), 1.0).all().item<bool>()) << name(dtype) << " " << bound;
    }
}

TEST(Cross, ValuesAndGradientsAreThoseOfTheFormula) {
  for (const auto& [sizes, dim] :
       {std::pair{Shape{7000, 3}, 1}, {Shape{2, 3, 5}, 1}, {Shape{3, 4, 2}, 0}, {Shape{0, 3}, -1}})
    for (const DType dtype : {kFloat32, kFloat64, kBFloat16}) {
      const Tensor a = make_input(sizes, 1).to(dtype).set_requires_grad(true),
                   b = make_input(sizes, 2).to(dtype).set_requires_grad(true), grad = make_input(sizes, 3).to(dtype);
      const auto formula = [d = dim](const Tensor& x, const Tensor& y) {
        const auto at = [d](const Tensor& t, std::int64_t i) { return t.detach().select(d, i); };
        const auto component = [&](std::int64_t i, std::int64_t j) {
          return at(x, i) * at(y, j) - at(x, j) * at(y, i);
        };
        return stack({component(1, 2), component(2, 0), component(0, 1)}, d);
      };
      const Tensor out = cross(a, b, dim);
      out.backward(grad);
      EXPECT_TRUE(equal(out, formula(a, b)));
      EXPECT_TRUE(equal(a.grad(), formula(b, grad)));
      EXPECT_TRUE(equal(b.grad(), formula(grad, a)));
    }
}

// Positive arguments, fractions and all others are computed in different ways, with the same bits.
TEST(LogGamma, OfFloatsIsTheRoundedOneOfDoubles) {
  std::vector<float> x;
  for (int i = 0; i < 4000; ++i) x.push_back(static_cast<float>(i - 2000) * 0.0137f + 0.003f);
  for (const float v : {-1e-30f, 1e-30f, -0.5f, -170.3f, 170.3f, -4000000.5f, 1e30f, 1.0f, 2.0f}) x.push_back(v);
  for (const bool whole : {false, true}) {
    if (whole)
      for (const float v : {0.0f, -0.0f, -3.0f, -1e20f, INFINITY, -INFINITY, static_cast<float>(NAN)}) x.push_back(v);
    const std::vector<float> out = lgamma(tensor(x)).to_vector<float>();
    for (std::size_t i = 0; i < x.size(); ++i) {
      const auto expected = static_cast<float>(unary::log_gamma(static_cast<double>(x[i])));
      ASSERT_TRUE(out[i] == expected || (std::isnan(out[i]) && std::isnan(expected))) << x[i];
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
