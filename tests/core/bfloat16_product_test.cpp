// Products of bfloat16 against the same in float32, to the bit.

#include "lockstep/core/cpu/gemm/bfloat16_product.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lockstep/core/cpu/gemm/bfloat16_kernels.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

struct Numbers {
  std::uint32_t state;
  std::uint32_t draw() { return state = state * 1664525U + 1013904223U; }
};

/// With exponents from `least` on, zeros among them.
std::vector<BFloat16> halves(std::int64_t count, std::uint32_t seed, std::uint32_t least, std::uint32_t exponents) {
  Numbers numbers{seed};
  std::vector<BFloat16> out(static_cast<std::size_t>(count));
  for (BFloat16& x : out) {
    const std::uint32_t exponent = least + (numbers.draw() >> 8) % exponents, sign = numbers.draw() >> 31;
    const bool zero = (numbers.draw() >> 8) % 7 == 0;
    x.bits = static_cast<std::uint16_t>(sign << 15 | (zero ? 0 : exponent << 7 | ((numbers.draw() >> 16) & 0x7f)));
  }
  return out;
}
std::vector<float> widened(const std::vector<BFloat16>& x) {
  return {x.begin(), x.end()};
}

struct Case {
  std::int64_t m, n, k;
  bool a_transposed, b_transposed;
  std::int64_t gap = 0;  // between rows as stored
};

/// Whether both give the same bits; a NaN is a NaN.
::testing::AssertionResult same_bits(const Case& c, std::vector<BFloat16> a, std::vector<BFloat16> b,
                                     bool finished = false) {
  const std::vector<float> wide_a = widened(a), wide_b = widened(b), bias(static_cast<std::size_t>(c.n), 0.5F);
  const std::int64_t a_stride = (c.a_transposed ? c.m : c.k) + c.gap, b_stride = (c.b_transposed ? c.k : c.n) + c.gap;
  const std::int64_t stride = c.n + 3;
  std::vector<float> expected(static_cast<std::size_t>(c.m * stride), -7.0F);
  std::vector<BFloat16> actual(expected.begin(), expected.end());
  const Activation activation = finished ? Activation::relu : Activation::none;
  gemm(Gemm<float>{.m = c.m,
                   .n = c.n,
                   .k = c.k,
                   .a = {wide_a.data(), a_stride, c.a_transposed},
                   .b = {wide_b.data(), b_stride, c.b_transposed},
                   .out = expected.data(),
                   .out_stride = stride,
                   .bias = finished ? bias.data() : nullptr,
                   .activation = activation});
  multiply_bfloat16({.m = c.m,
                     .n = c.n,
                     .k = c.k,
                     .a = {a.data(), a_stride, c.a_transposed},
                     .b = {b.data(), b_stride, c.b_transposed},
                     .out = actual.data(),
                     .out_stride = stride,
                     .bias = finished ? bias.data() : nullptr,
                     .activation = activation});
  for (std::size_t i = 0; i < expected.size(); ++i)
    if (BFloat16(expected[i]).bits != actual[i].bits && !(std::isnan(expected[i]) && std::isnan(float{actual[i]})))
      return ::testing::AssertionFailure() << c.m << " x " << c.n << " x " << c.k << ", element " << i << ": "
                                           << expected[i] << " and " << float{actual[i]};
  return ::testing::AssertionSuccess();
}

std::int64_t stored(const Case& c, bool of_a) {
  const std::int64_t rows = of_a ? (c.a_transposed ? c.k : c.m) : (c.b_transposed ? c.n : c.k);
  const std::int64_t columns = of_a ? (c.a_transposed ? c.m : c.k) : (c.b_transposed ? c.k : c.n);
  return rows * (columns + c.gap);
}

class Bfloat16Product : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_bfloat16_pairs()) GTEST_SKIP() << "this processor has no instructions for it";
  }
};

const Case kCases[] = {{64, 64, 64, false, true},      {65, 33, 129, false, false},    {13, 640, 40, true, false},
                       {12, 16, 2000, true, true},     {127, 95, 515, false, true, 5}, {100, 31, 1031, true, false, 1},
                       {70, 200, 1025, true, true, 3}, {256, 384, 384, false, false},  {300, 17, 77, false, true, 2},
                       {1, 704, 256, false, true},     {2, 95, 1031, false, true, 3},  {3, 64, 700, true, false},
                       {4, 33, 97, true, true},        {5, 640, 65, false, true},      {11, 40, 1200, false, false, 2}};

TEST_F(Bfloat16Product, HasTheBitsOfFloat32) {
  const int threads = num_threads();
  for (const int n : {1, 3}) {
    set_num_threads(n);
    for (const Case& c : kCases)
      for (const bool finished : {false, true}) {
        EXPECT_TRUE(same_bits(c, halves(stored(c, true), 1, 110, 20), halves(stored(c, false), 2, 110, 20), finished));
        // Wherever the ends of the range begin to matter, and beyond.
        for (const std::uint32_t least : {1U, 40U, 60U, 66U, 70U, 76U, 180U, 200U, 225U})
          EXPECT_TRUE(
              same_bits(c, halves(stored(c, true), 3, least, 25), halves(stored(c, false), 4, least, 25), finished))
              << least;
      }
  }
  set_num_threads(threads);
}

TEST_F(Bfloat16Product, OfOneStepAndOneRow) {
  for (const Case& c : {Case{1, 1, 1, false, false}, Case{1, 40, 3, true, true}, Case{30, 1, 2, false, true}})
    EXPECT_TRUE(same_bits(c, halves(stored(c, true), 1, 110, 20), halves(stored(c, false), 2, 110, 20)));
}

TEST_F(Bfloat16Product, OfWhatIsNotNormal) {
  for (const Case& c : kCases) {
    std::vector<BFloat16> a = halves(stored(c, true), 5, 110, 20), b = halves(stored(c, false), 6, 110, 20);
    a[a.size() / 2] = BFloat16(std::numeric_limits<float>::infinity());
    b[b.size() / 3].bits = 1;  // the smallest there is
    b[b.size() / 4] = BFloat16(std::numeric_limits<float>::quiet_NaN());
    EXPECT_TRUE(same_bits(c, a, b));
  }
}

TEST_F(Bfloat16Product, TilesAreEqualWhereRangesFit) {
  const gemm_detail::Bfloat16Kernels& kernels = *gemm_detail::bfloat16_kernels();
  for (std::int64_t rows = 1; rows <= gemm_detail::kBfloat16Rows; ++rows)
    for (const std::int64_t steps : {1, 2, 31, 512}) {
      const std::vector<BFloat16> a = halves(rows * steps, 7, 100, 40), b = halves(29 * steps, 8, 100, 40);
      std::vector<std::uint32_t> left(6200), right(17000);
      const auto range_a = kernels.pack({a.data(), rows, steps, steps, 1}, gemm_detail::kBfloat16Rows, left.data());
      const auto range_b = kernels.pack({b.data(), 29, steps, 1, 29}, gemm_detail::kBfloat16Columns, right.data());
      ASSERT_TRUE(fits(range_a, range_b));
      std::vector<float> paired(12 * 32, 1.0F), fused(12 * 32, 1.0F);
      for (const bool adds : {false, true}) {
        kernels.paired[rows](left.data(), right.data(), steps, paired.data(), 32, 29, adds);
        kernels.fused[rows](left.data(), right.data(), steps, fused.data(), 32, 29, adds);
      }
      EXPECT_EQ(std::memcmp(paired.data(), fused.data(), paired.size() * sizeof(float)), 0) << rows << " x " << steps;
    }
}

TEST(Bfloat16Range, FitsWhereNothingIsLost) {
  EXPECT_TRUE(gemm_detail::fits({71, 130}, {71, 130}));
  EXPECT_FALSE(gemm_detail::fits({70, 130}, {71, 130}));
  EXPECT_FALSE(gemm_detail::fits({0, 130}, {200, 130}));
  EXPECT_FALSE(gemm_detail::fits({100, 255}, {100, 130}));
  EXPECT_FALSE(gemm_detail::fits({100, 255}, {255, 0}));
  EXPECT_TRUE(gemm_detail::fits({255, 0}, {100, 130}));  // zeros alone
}

}  // namespace
}  // namespace lockstep::cpu
