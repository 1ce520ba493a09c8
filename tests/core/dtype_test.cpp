#include "lockstep/core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace lockstep {
namespace {

constexpr DType kAll[] = {kFloat32, kFloat64, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool};

TEST(DType, NamesAndSizesAreThoseOfNumPy) {
  const struct {
    DType dtype;
    const char* name;
    std::size_t size;
    bool floating;
  } cases[] = {
      {kFloat32, "float32", 4, true},   {kFloat64, "float64", 8, true}, {kFloat16, "float16", 2, true},
      {kBFloat16, "bfloat16", 2, true}, {kInt64, "int64", 8, false},    {kInt32, "int32", 4, false},
      {kUInt8, "uint8", 1, false},      {kBool, "bool", 1, false},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(name(c.dtype), c.name);
    EXPECT_EQ(element_size(c.dtype), c.size);
    EXPECT_EQ(is_floating_point(c.dtype), c.floating);
  }
}

TEST(DType, PromotionFollowsPyTorch) {
  const struct {
    DType a, b, result;
  } cases[] = {
      {kFloat32, kFloat64, kFloat64}, {kFloat16, kFloat32, kFloat32}, {kFloat16, kBFloat16, kFloat32},
      {kFloat16, kInt64, kFloat16},   {kBFloat16, kUInt8, kBFloat16}, {kFloat32, kBool, kFloat32},
      {kInt32, kInt64, kInt64},       {kUInt8, kInt32, kInt32},       {kUInt8, kBool, kUInt8},
      {kBool, kInt64, kInt64},
  };
  for (const auto& c : cases) EXPECT_EQ(promote_types(c.a, c.b), c.result) << name(c.a) << " " << name(c.b);
  for (const DType a : kAll) {
    EXPECT_EQ(promote_types(a, a), a);
    for (const DType b : kAll) EXPECT_EQ(promote_types(a, b), promote_types(b, a));
  }
}

float half_from_bits(int bits) {
  return Half::to_float(static_cast<std::uint16_t>(bits));
}
float bfloat_from_bits(int bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

TEST(Half, EveryValueSurvivesARoundTrip) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = half_from_bits(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(half_from_bits(Half::from_float(value))));
    } else {
      ASSERT_EQ(Half::from_float(value), bits);
    }
  }
}

TEST(Half, KnownValues) {
  const struct {
    float value;
    std::uint16_t bits;
  } cases[] = {
      {0.0f, 0x0000},
      {-0.0f, 0x8000},
      {1.0f, 0x3c00},
      {-2.0f, 0xc000},
      {65504.0f, 0x7bff},
      {65519.996f, 0x7bff},
      {65520.0f, 0x7c00},
      {1e30f, 0x7c00},
      {-1e30f, 0xfc00},
      {0x1p-14f, 0x0400},
      {0x1p-24f, 0x0001},
      {0x1p-25f, 0x0000},
      {0x1.000002p-25f, 0x0001},
      {0x1.ff8p-15f, 0x03ff},
      {0x1.ffcp-15f, 0x0400},
      {0.1f, 0x2e66},
      {std::numeric_limits<float>::infinity(), 0x7c00},
  };
  for (const auto& c : cases) EXPECT_EQ(Half::from_float(c.value), c.bits) << c.value;
  EXPECT_TRUE(std::isnan(static_cast<float>(Half(std::nanf("")))));
}

// Between neighbours a < b: below the middle gives a, above gives b, the middle gives the one with an even mantissa.
template <typename FromBits, typename Round>
void check_rounding(int last, FromBits from_bits, Round round) {
  for (int bits = 0; bits < last; ++bits) {
    const float a = from_bits(bits), b = from_bits(bits + 1);
    const float middle = a + (b - a) / 2;
    const int even = bits % 2 == 0 ? bits : bits + 1;
    ASSERT_EQ(round(middle), even) << bits;
    ASSERT_EQ(round(std::nextafter(middle, a)), bits) << bits;
    ASSERT_EQ(round(std::nextafter(middle, b)), bits + 1) << bits;
    ASSERT_EQ(round(-middle), even | 0x8000) << bits;
  }
}

TEST(Half, RoundsToNearestEven) {
  check_rounding(0x7bff, half_from_bits, Half::from_float);
}

TEST(BFloat16, RoundsToNearestEven) {
  // Subnormal neighbours are tested too: flushing them to zero would show.
  check_rounding(0x7f7f, bfloat_from_bits, BFloat16::from_float);
}

TEST(BFloat16, EveryValueSurvivesARoundTrip) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float value = bfloat_from_bits(bits);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(value))));
    } else {
      ASSERT_EQ(BFloat16::from_float(value), bits);
    }
  }
}

TEST(BFloat16, OverflowBecomesInfinity) {
  EXPECT_TRUE(std::isinf(static_cast<float>(BFloat16(std::numeric_limits<float>::max()))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
}

}  // namespace
}  // namespace lockstep
