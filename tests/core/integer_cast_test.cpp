#include "lockstep/core/integer_cast.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace lockstep {
namespace {

template <typename T, typename F>
void expect(F value, T expected) {
  EXPECT_EQ(integer_cast<T>(value), expected) << value;
  EXPECT_EQ(detail::checked_integer_cast<T>(value), expected) << value << ", as on other processors";
}

template <typename F>
void expect_all() {
  constexpr std::int64_t kLeast64 = std::numeric_limits<std::int64_t>::min();
  constexpr std::int32_t kLeast32 = std::numeric_limits<std::int32_t>::min();
  for (const F beyond : {F(NAN), F(INFINITY), -F(INFINITY), F(0x1p63), F(0x1p100), -F(0x1p64)}) {
    expect<std::int64_t>(beyond, kLeast64);
    expect<std::int32_t>(beyond, kLeast32);
    expect<std::uint8_t>(beyond, 0);
  }
  expect<std::int64_t>(F(-0x1p63), kLeast64);
  expect<std::int64_t>(F(0x1p62), std::int64_t{1} << 62);
  expect<std::int64_t>(F(-2.75), -2);
  expect<std::int32_t>(F(0x1p31), kLeast32);
  expect<std::int32_t>(F(-0x1p31), kLeast32);
  expect<std::int32_t>(F(-0.5), 0);
  expect<std::int32_t>(F(7.99), 7);
  expect<std::uint8_t>(F(-1), 255);
  expect<std::uint8_t>(F(-8.5), 248);
  expect<std::uint8_t>(F(300.5), 44);
  expect<std::uint8_t>(F(0x1p31), 0);
}

TEST(IntegerCast, IsTheSameOnAllProcessors) {
  expect_all<float>();
  expect_all<double>();
}

}  // namespace
}  // namespace lockstep
