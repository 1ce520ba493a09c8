#include "lockstep/core/cpu/write_row.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "tests/support/tensor_testing.h"

namespace lockstep::cpu {
namespace {

using testing::same_bits;

std::vector<float> arguments(std::int64_t count) {
  std::vector<float> x;
  for (std::int64_t i = 0; i < count; ++i) x.push_back(static_cast<float>(i * 7919 % 2003 - 1000) / 37.0f);
  const float special[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 1e-42f, 88.8f, -104.5f};
  for (std::size_t i = 0; i < std::size(special) && i < x.size(); ++i) x[x.size() - 1 - i] = special[i];
  return x;
}

// Every length about vectors, lines and pieces, and one with which lines are asked for ahead.
TEST(WriteRow, WritesEachElementOnceAndNothingElse) {
  for (std::int64_t count = 0; count < 2500; count += count < 200 ? 1 : 577) {
    std::vector<float> out(static_cast<std::size_t>(count) + 64, -1.0f);
    write_row(out.data() + 32, count, [](std::int64_t i) { return static_cast<float>(2 * i); });
    for (std::int64_t i = 0; i < count + 64; ++i)
      ASSERT_EQ(out[static_cast<std::size_t>(i)], i < 32 || i >= count + 32 ? -1.0f : static_cast<float>(2 * (i - 32)))
          << i << " of " << count;
  }
}

TEST(WriteRow, ARowMayBeChangedInPlace) {
  std::vector<double> row(1000, 3.0);
  double* const at = row.data();
  write_row(at, 1000, [at](std::int64_t i) { return at[i] * static_cast<double>(i); });
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(row[static_cast<std::size_t>(i)], 3.0 * i);
}

TEST(WriteRow, WideVectorsGiveTheSameBits) {
  if (!has_instruction_set(InstructionSet::avx512)) GTEST_SKIP() << "this processor has no AVX-512";
  const auto compare = [](const char* name, auto function) {
    for (const std::int64_t count : {1, 15, 16, 63, 64, 65, 1000, 4099}) {
      const std::vector<float> x = arguments(count);
      std::vector<float> narrow(x.size()), wide(x.size());
      const auto value = [from = x.data(), function](std::int64_t i) { return function(from[i]); };
      detail::write_pieces(narrow.data(), count, value);
      detail::write_pieces_wide(wide.data(), count, value);
      EXPECT_TRUE(same_bits(narrow, wide)) << name << " of " << count;
    }
  };
  compare("exp", [](float x) { return math::exp(x); });
  compare("exp_below", [](float x) { return math::exp_below(x); });
  compare("tanh", [](float x) { return math::tanh(x); });
  compare("sigmoid", [](float x) { return math::sigmoid(x); });
  compare("log1p", [](float x) { return math::log1p(x); });
  compare("expm1", [](float x) { return math::expm1(x); });
  compare("normal", [](float x) { return x * math::normal(x).cumulative; });
  compare("quotient", [](float x) { return (x * x + 1.0f) / (x - 0.3f); });
}

}  // namespace
}  // namespace lockstep::cpu
