#include "lockstep/core/cpu/half_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace lockstep::cpu {
namespace {

template <typename T>
T of_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

/// A NaN's payload may differ.
template <typename T>
void expect_same(T found, T expected, float of) {
  const auto is_nan = [](T value) { return std::isnan(static_cast<float>(value)); };
  if (is_nan(expected)) {
    EXPECT_TRUE(is_nan(found)) << std::bit_cast<std::uint32_t>(of);
    EXPECT_EQ(found.bits >> 15, expected.bits >> 15) << std::bit_cast<std::uint32_t>(of);
  } else {
    EXPECT_EQ(found.bits, expected.bits) << std::bit_cast<std::uint32_t>(of);
  }
}

template <typename T>
class HalfRows : public ::testing::Test {};
using HalfTypes = ::testing::Types<Half, BFloat16>;
TYPED_TEST_SUITE(HalfRows, HalfTypes);

TYPED_TEST(HalfRows, EveryValueIsWidenedExactly) {
  std::vector<TypeParam> source(65536);
  for (std::uint32_t i = 0; i < 65536; ++i) source[i] = of_bits<TypeParam>(i);
  for (const InstructionSet set : instruction_sets()) {
    std::vector<float> values(source.size());
    widen_row(source.data(), 65536, values.data(), set);
    for (std::size_t i = 0; i < source.size(); ++i) {
      const float expected = source[i];
      if (std::isnan(expected))
        EXPECT_TRUE(std::isnan(values[i])) << i;
      else
        EXPECT_EQ(std::bit_cast<std::uint32_t>(values[i]), std::bit_cast<std::uint32_t>(expected)) << i;
    }
  }
}

TYPED_TEST(HalfRows, EveryValueAndItsNeighboursAreRoundedAsOneByOne) {
  std::vector<float> values;
  for (std::uint32_t i = 0; i < 65536; ++i) {
    const std::uint32_t half = std::bit_cast<std::uint32_t>(static_cast<float>(of_bits<TypeParam>(i)));
    for (const std::uint32_t beside : {0U, 1U, 0x0fffU, 0x1000U, 0x1001U, 0x7fffU, 0x8000U, 0x8001U, 0xffffU})
      values.push_back(std::bit_cast<float>(half + beside));
  }
  for (const InstructionSet set : instruction_sets()) {
    std::vector<TypeParam> target(values.size());
    narrow_row(values.data(), static_cast<std::int64_t>(values.size()), target.data(), set);
    for (std::size_t i = 0; i < values.size(); ++i) expect_same(target[i], TypeParam(values[i]), values[i]);
  }
}

TYPED_TEST(HalfRows, NothingBeyondARowIsTouched) {
  for (const InstructionSet set : instruction_sets())
    for (std::int64_t count = 0; count <= 70; ++count) {
      std::vector<float> values(80, -1.0f), back(80, -1.0f);
      std::vector<TypeParam> halves(80, TypeParam(-1.0f));
      for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = static_cast<float>(i) * 0.25f;
      narrow_row(values.data(), count, halves.data(), set);
      widen_row(halves.data(), count, back.data(), set);
      EXPECT_EQ(back, values) << count;
      for (std::size_t i = static_cast<std::size_t>(count); i < halves.size(); ++i)
        EXPECT_EQ(static_cast<float>(halves[i]), -1.0f) << count;
    }
}

}  // namespace
}  // namespace lockstep::cpu
