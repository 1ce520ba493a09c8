#include "lockstep/core/cpu/gemm/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gemm_cases.h"
#include "lockstep/core/cpu/gemm/blocking.h"
#include "lockstep/core/cpu/gemm/libraries.h"
#include "lockstep/core/cpu/gemm/own.h"
#include "lockstep/core/error.h"
#include "lockstep/core/thread_pool.h"

namespace lockstep::cpu {
namespace {

struct Sizes {
  std::int64_t m, n, k;
};
constexpr Sizes kSizes[] = {{1, 1, 1},   {1, 37, 5},     {2, 16, 9},    {3, 3, 400},  {2, 2, 6000},  {5, 64, 17},
                            {7, 65, 31}, {8, 130, 20},   {10, 50, 64},  {13, 7, 129}, {14, 32, 384}, {15, 33, 385},
                            {40, 1, 70}, {64, 10, 50},   {64, 50, 10},  {12, 47, 33}, {70, 13, 19},  {40, 23, 70},
                            {97, 9, 33}, {130, 100, 70}, {6, 300, 800}, {300, 70, 7}, {19, 5, 40},   {28, 3, 600}};

template <typename T>
class GemmTest : public ::testing::Test {};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(GemmTest, Types);

TYPED_TEST(GemmTest, AgreesWithFloat64OnAllInstructionSetsWhichAgreeToTheBit) {
  ASSERT_FALSE(instruction_sets().empty());
  for (const Sizes& s : kSizes)
    for (int t = 0; t < 4; ++t) {
      const Case<TypeParam> c(t & 1, t & 2, s.m, s.n, s.k);
      const std::vector<TypeParam> first = c.own(instruction_sets()[0]);
      expect_near_reference(c, first);
      for (const InstructionSet set : instruction_sets())
        EXPECT_TRUE(same_bits(c.own(set), first)) << name(set) << " " << s.m << " " << s.n << " " << s.k << " " << t;
    }
}

// Lengths that decide what is packed and how, and rows that would share places of a cache.
TYPED_TEST(GemmTest, RowsAPowerOfTwoApart) {
  for (const Sizes& s :
       {Sizes{64, 1024, 27}, Sizes{30, 512, 9}, Sizes{9, 70, 1024}, Sizes{3, 64, 512}, Sizes{1, 130, 768},
        Sizes{256, 260, 140}, Sizes{12, 50, 37}, Sizes{64, 10, 512}, Sizes{4, 40, 1030}})
    for (int t = 0; t < 4; ++t) {
      const Case<TypeParam> c(t & 1, t & 2, s.m, s.n, s.k, 1, 0);
      const std::vector<TypeParam> first = c.own(instruction_sets()[0]);
      expect_near_reference(c, first);
      for (const InstructionSet set : instruction_sets())
        EXPECT_TRUE(same_bits(c.own(set), first)) << name(set) << " " << s.m << " " << s.n << " " << s.k << " " << t;
    }
}

// A transposed matrix of more than a few MiB and few columns beside it: computed as the transpose, its rows as columns.
TYPED_TEST(GemmTest, FewColumnsBesideALargeTransposedMatrix) {
  const std::int64_t m = 6144 / static_cast<std::int64_t>(sizeof(TypeParam));
  for (const std::int64_t n : {5, 10, 16, 17}) {
    Case<TypeParam> c(true, false, m - 7, n, 1200, 1, 7);
    c.g.beta = TypeParam(n % 2);
    c.g.bias = c.bias.data();
    const std::vector<TypeParam> first = c.own(instruction_sets()[0]);
    expect_near_reference(c, first);
    for (const InstructionSet set : instruction_sets())
      EXPECT_TRUE(same_bits(c.own(set), first)) << name(set) << " " << n;
  }
}

// A transposed matrix is packed whole or in groups of panels, and what comes slowly is asked for early. The same matrix
// as it is meant is read in place.
TYPED_TEST(GemmTest, ATransposedMatrixGivesTheBitsOfItsTranspose) {
  const int before = num_threads();
  const std::int64_t far = gemm_detail::second_level_cache() / static_cast<std::int64_t>(sizeof(TypeParam));
  const std::int64_t k = 700;  // two blocks
  for (const Sizes& s :
       {Sizes{110, far / k + 37, k}, Sizes{far / k + 13, 290, k}, Sizes{far / k + 13, far / k + 5, 90}}) {
    Case<TypeParam> c(true, false, s.m, s.n, s.k, 1, 203);
    c.g.alpha = TypeParam(0.75);
    c.g.beta = TypeParam(-0.5);
    c.g.bias = c.bias.data();
    c.g.activation = Activation::relu;
    Case<TypeParam> meant = c;
    meant.g.b.data = meant.b.data();
    meant.g.bias = meant.bias.data();
    meant.a.assign(static_cast<std::size_t>(s.m * s.k), TypeParam(0));
    for (std::int64_t i = 0; i < s.m; ++i)
      for (std::int64_t p = 0; p < s.k; ++p)
        meant.a[static_cast<std::size_t>(i * s.k + p)] = c.a[static_cast<std::size_t>(p * c.g.a.stride + i)];
    meant.g.a = {meant.a.data(), s.k, false, 0};
    const std::vector<TypeParam> first = meant.own(instruction_sets()[0]);
    for (const InstructionSet set : instruction_sets())
      for (const int threads : {1, 2}) {
        set_num_threads(threads);
        EXPECT_TRUE(same_bits(c.own(set), first)) << name(set) << " " << s.m << " " << s.n << " " << threads;
      }
  }
  set_num_threads(before);
}

// Large operands that are read once, whose rows would share places of a cache.
TYPED_TEST(GemmTest, FewRowsTimesALargeMatrix) {
  const int before = num_threads();
  // Of more rows b does not stay in the second level, and is asked for while the part before is used.
  const std::int64_t far = gemm_detail::second_level_cache() / 480 + 100;
  for (const std::int64_t m : {1, 2, 3, 4, 5, 7, 8, 11, 12, 43, 50, 64})
    for (const bool transpose_a : {false, true})
      for (const bool transpose_b : {false, true}) {
        // The rows of b are 3072 (of seven and eight rows 4096) or 2048 elements long, of which not all count.
        const std::int64_t wide = m == 7 || m == 8 ? 4025 : 3001;
        const std::int64_t n = m > 12 ? far : transpose_b ? 170 : wide, k = m > 12 ? 120 : transpose_b ? 2005 : 530;
        Case<TypeParam> c(transpose_a, transpose_b, m, n, k, 1, transpose_b ? 43 : 71);
        if (m % 2 == 0) {
          c.g.alpha = TypeParam(0.75);
          c.g.beta = TypeParam(-0.5);
          c.g.bias = c.bias.data();
          c.g.activation = Activation::relu;
        }
        const std::vector<TypeParam> first = c.own(instruction_sets()[0]);
        expect_near_reference(c, first);
        for (const InstructionSet set : instruction_sets())
          for (const int threads : {1, 2}) {
            set_num_threads(threads);
            EXPECT_TRUE(same_bits(c.own(set), first)) << name(set) << " " << m << transpose_a << transpose_b << threads;
          }
        // A row among many, which is computed by tiles, has the same bits.
        if (m != 1 || transpose_a) continue;
        Case<TypeParam> many(false, transpose_b, 20, c.g.n, c.g.k, 1, c.g.b.stride - (transpose_b ? c.g.k : c.g.n));
        many.g.b = c.g.b;
        std::copy_n(c.a.begin(), c.g.k, many.a.begin());
        const std::vector<TypeParam> rows = many.own(instruction_sets()[0]);
        EXPECT_EQ(std::memcmp(rows.data(), first.data(), static_cast<std::size_t>(c.g.n) * sizeof(TypeParam)), 0);
      }
  set_num_threads(before);
}

TYPED_TEST(GemmTest, Epilogues) {
  for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu})
    for (int mask = 0; mask < 32; ++mask) {
      Case<TypeParam> c(mask & 1, mask & 2, mask & 16 ? 3 : 41, 45, mask & 4 ? 400 : 30);
      c.g.activation = activation;
      c.g.alpha = mask & 1 ? TypeParam(1) : TypeParam(0.75);
      c.g.beta = mask & 2 ? TypeParam(1) : mask & 8 ? TypeParam(-0.5) : TypeParam(0);
      c.g.bias = mask & 4 ? c.bias.data() : nullptr;
      c.g.row_bias = mask & 8 ? c.row_bias.data() : nullptr;
      const std::vector<TypeParam> first = c.own(instruction_sets()[0]);
      expect_near_reference(c, first);
      for (const InstructionSet set : instruction_sets())
        EXPECT_TRUE(same_bits(c.own(set), first)) << name(set) << mask;
      Case<TypeParam> library = c;
      library.g.out = library.out.data();
      gemm_detail::multiply_libraries(library.g);
      expect_near_reference(c, library.out);
    }
}

TYPED_TEST(GemmTest, Batches) {
  for (const std::int64_t batch : {2, 9}) {
    Case<TypeParam> c(false, true, 5, 18, 40, batch);
    for (const InstructionSet set : instruction_sets()) expect_near_reference(c, c.own(set));
    c.g.b.batch_stride = 0;
    expect_near_reference(c, c.own(instruction_sets()[0]));
  }
}

TYPED_TEST(GemmTest, ThreadsDoNotChangeBits) {
  const int before = num_threads();
  // The second packs rows of both operands for all threads, in two blocks of k. The third packs nothing, and vectors at
  // the end of a task's rows lie over their neighbours. The last has long sums.
  constexpr Sizes kLarge[] = {{250, 530, 400}, {512, 140, 1024}, {300, 530, 40}, {2, 3, 40000}};
  for (int t = 0; t < 16; ++t) {
    const Sizes& s = kLarge[t / 4];
    const Case<TypeParam> c(t & 1, t & 2, s.m, s.n, s.k, 1, t / 4 == 1 ? 0 : 3);
    for (const InstructionSet set : instruction_sets()) {
      set_num_threads(1);
      const std::vector<TypeParam> one = c.own(set);
      for (const int threads : {2, 3}) {
        set_num_threads(threads);
        EXPECT_TRUE(same_bits(c.own(set), one)) << name(set) << " " << threads;
      }
    }
  }
  set_num_threads(before);
}

TYPED_TEST(GemmTest, ARowOrAColumnHasTheBitsItHasInALargerProduct) {
  constexpr std::int64_t m = 61, n = 83, k = 500;
  const Case<TypeParam> whole(false, false, m, n, k);
  for (const InstructionSet set : instruction_sets()) {
    const std::vector<TypeParam> expected = whole.own(set);
    for (const auto& [row, rows] : {std::pair<std::int64_t, std::int64_t>{0, 1}, {1, 8}, {9, 52}})
      for (const auto& [column, columns] : {std::pair<std::int64_t, std::int64_t>{0, 7}, {7, 1}, {8, 75}}) {
        Gemm<TypeParam> part = whole.g;
        std::vector<TypeParam> result(static_cast<std::size_t>(rows * columns));
        part.m = rows;
        part.n = columns;
        part.a.data += row * part.a.stride;
        part.b.data += column;
        part.out = result.data();
        part.out_stride = columns;
        gemm_detail::multiply_own(part, set);
        for (std::int64_t i = 0; i < rows; ++i)
          EXPECT_EQ(std::memcmp(result.data() + i * columns, expected.data() + (row + i) * whole.g.out_stride + column,
                                static_cast<std::size_t>(columns) * sizeof(TypeParam)),
                    0);
      }
  }
}

// Lengths with and without a rest, of one, two and three blocks; rows that share places of a cache (no gap) or do not.
TYPED_TEST(GemmTest, OneRowTimesATransposedMatrixHasTheBitsOfThatRowAmongMany) {
  for (const std::int64_t k : {3, 16, 29, 384, 512, 768, 777, 1024, 1032, 1536, 2560})
    for (const std::int64_t gap : {0, 16})
      for (const bool finished : {false, true}) {
        Case<TypeParam> many(false, true, 20, 75, k, 1, gap);
        if (finished) {
          many.g.alpha = TypeParam(0.75);
          many.g.beta = TypeParam(-0.5);
          many.g.bias = many.bias.data();
          many.g.activation = Activation::relu;
        }
        const std::vector<TypeParam> expected = many.own(instruction_sets()[0]);
        Case<TypeParam> one = many;
        one.g.m = 1;
        // The same row, its elements side by side or apart.
        for (const std::int64_t step : {1, 3}) {
          std::vector<TypeParam> row(static_cast<std::size_t>(k * step));
          for (std::int64_t p = 0; p < k; ++p)
            row[static_cast<std::size_t>(p * step)] = many.a[static_cast<std::size_t>(p)];
          one.g.a = {row.data(), step == 1 ? k : step, step != 1};
          for (const InstructionSet set : instruction_sets())
            EXPECT_EQ(std::memcmp(one.own(set).data(), expected.data(), 75 * sizeof(TypeParam)), 0)
                << name(set) << " " << k << " " << gap << " " << finished << " " << step;
        }
      }
}

// Note [Order of a product], spelled out. The last ones have long sums, and blocks that are computed side by side.
TYPED_TEST(GemmTest, EachElementIsOneChainOfFusedMultiplyAddsInEachBlock) {
  using T = TypeParam;
  constexpr std::int64_t kInner = gemm_detail::kInner;
  for (const Sizes& s : {Sizes{3, 5, 2 * kInner + 11}, Sizes{1, 1, 9 * kInner}, Sizes{8, 1, 9 * kInner + 1},
                         Sizes{1, 7, 17 * kInner}, Sizes{3, 3, 20 * kInner + 77}, Sizes{5, 3, 12 * kInner - 5}})
    for (int t = 0; t < 8; ++t) {
      Case<T> c(t & 1, t & 2, s.m, s.n, s.k);
      c.g.alpha = t & 4 ? T(0.75) : T(1);
      c.g.beta = t & 4 ? T(-0.5) : T(0);
      const std::int64_t block = gemm_detail::inner_block(s.k);
      const auto at = [](const std::vector<T>& values, const GemmOperand<T>& operand, std::int64_t i, std::int64_t j) {
        return values[static_cast<std::size_t>(operand.transposed ? j * operand.stride + i : i * operand.stride + j)];
      };
      std::vector<T> expected = c.out;
      for (std::int64_t i = 0; i < s.m; ++i)
        for (std::int64_t j = 0; j < s.n; ++j) {
          T& total = expected[static_cast<std::size_t>(i * c.g.out_stride + j)];
          for (std::int64_t first = 0; first < s.k; first += block) {
            T sum = 0;
            for (std::int64_t p = first; p < std::min(first + block, s.k); ++p)
              sum = std::fma(at(c.a, c.g.a, i, p), at(c.b, c.g.b, p, j), sum);
            const T before = first > 0 ? total : t & 4 ? c.g.beta * total : T(0);
            total = first > 0 || t & 4 ? before + c.g.alpha * sum : sum;
          }
        }
      for (const InstructionSet set : instruction_sets()) {
        const std::vector<T> result = c.own(set);
        for (std::int64_t i = 0; i < s.m; ++i)
          EXPECT_EQ(std::memcmp(result.data() + i * c.g.out_stride, expected.data() + i * c.g.out_stride,
                                static_cast<std::size_t>(s.n) * sizeof(T)),
                    0)
              << name(set) << " " << s.m << " " << s.n << " " << s.k << " " << t;
      }
    }
}

TYPED_TEST(GemmTest, WithoutTermsTheResultIsWhatWasThere) {
  Case<TypeParam> c(false, false, 4, 6, 3);
  c.g.k = 0;
  c.g.beta = TypeParam(0.5);
  c.g.bias = c.bias.data();
  const std::vector<TypeParam> before = c.out;
  gemm(c.g);
  EXPECT_EQ(c.out[0], TypeParam(0.5) * before[0] + c.bias[0]);
  c.g.beta = 0;
  c.out[0] = std::numeric_limits<TypeParam>::quiet_NaN();
  gemm(c.g);
  EXPECT_EQ(c.out[0], c.bias[0]);
  c.g.m = 0;
  EXPECT_NO_THROW(gemm(c.g));
}

TYPED_TEST(GemmTest, NaNAndInfinityArrive) {
  constexpr TypeParam nan = std::numeric_limits<TypeParam>::quiet_NaN(),
                      inf = std::numeric_limits<TypeParam>::infinity();
  for (const InstructionSet set : instruction_sets()) {
    Case<TypeParam> c(false, false, 20, 40, 50, 1, 0);
    c.a[3 * 50 + 7] = nan;  // row 3
    c.b[10 * 40 + 5] = 0;   // column 5
    c.a[4 * 50 + 10] = inf;
    c.g.activation = Activation::relu;
    c.out.assign(c.out.size(), nan);  // ignored: beta is 0
    const std::vector<TypeParam> result = c.own(set);
    for (std::size_t i = 0; i < 20; ++i)
      for (std::size_t j = 0; j < 40; ++j) {
        const TypeParam value = result[i * 40 + j];
        if (i == 3 || (i == 4 && j == 5))
          EXPECT_TRUE(std::isnan(value)) << i << " " << j;
        else if (i == 4)
          EXPECT_TRUE(value == inf || value == 0);
        else
          EXPECT_TRUE(std::isfinite(value)) << i << " " << j;
      }
  }
}

TYPED_TEST(GemmTest, WhatItDoesNotTake) {
  Case<TypeParam> c(false, false, 4, 6, 3);
  const auto refused = [&](auto&& change, const char* text) {
    Gemm<TypeParam> g = c.g;
    change(g);
    try {
      gemm(g);
      ADD_FAILURE() << "no error: " << text;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
  };
  refused([](auto& g) { g.m = -1; }, "no negative size");
  refused([](auto& g) { g.a.stride = 2; }, "a: rows of 3 elements");
  refused([](auto& g) { g.out_stride = 5; }, "expected that none overlap");
  refused(
      [](auto& g) {
        g.m = 1;  // so that the result ends within b, whatever lies behind that
        g.out = const_cast<TypeParam*>(g.b.data) + 1;
      },
      "overlaps operand b");
  refused([](auto& g) { g.a.data = g.out + 20; }, "overlaps operand a");
}

TEST(Gemm, SettingsAreReadStrictly) {
  using detail::choose_instruction_set;
  const std::vector<InstructionSet> both = {InstructionSet::avx512, InstructionSet::avx2};
  EXPECT_EQ(choose_instruction_set(nullptr, both), InstructionSet::avx512);
  EXPECT_EQ(choose_instruction_set("avx2", both), InstructionSet::avx2);
  EXPECT_THROW(choose_instruction_set("sse2", both), Error);
  EXPECT_THROW(choose_instruction_set("avx512", {InstructionSet::avx2}), Error);
  EXPECT_THROW(choose_instruction_set(nullptr, {}), Error);
  EXPECT_EQ(gemm_detail::choose_kernels(nullptr), Kernels::own);
  EXPECT_EQ(gemm_detail::choose_kernels("own"), Kernels::own);
  EXPECT_EQ(gemm_detail::choose_kernels("libraries"), Kernels::libraries);
  EXPECT_THROW(gemm_detail::choose_kernels("blas"), Error);
}

}  // namespace
}  // namespace lockstep::cpu
