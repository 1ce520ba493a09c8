#include "lockstep/core/small_vector.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "lockstep/core/ref_counted.h"

namespace lockstep {
namespace {

using Strings = SmallVector<std::string, 2>;

Strings filled(std::size_t count) {
  Strings strings;
  for (std::size_t i = 0; i < count; ++i)
    strings.push_back("a string that is too long to be inline " + std::to_string(i));
  return strings;
}

TEST(SmallVector, CopiesAndMovesInsideAndOutsideOfItsBuffer) {
  for (const std::size_t count : {0u, 1u, 2u, 3u, 9u}) {
    Strings a = filled(count);
    ASSERT_EQ(a.size(), count);
    Strings copy = a;
    Strings moved = std::move(a);
    EXPECT_TRUE(a.empty());  // NOLINT: a moved-from vector is empty
    ASSERT_EQ(copy.size(), count);
    ASSERT_EQ(moved.size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(copy[i], moved[i]);
    a = copy;
    copy = std::move(moved);
    a = std::move(copy);
    a = *&a;
    ASSERT_EQ(a.size(), count);
    for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(a[i].back(), static_cast<char>('0' + i));
    a.push_back("x");
    EXPECT_EQ(a[count], "x");
    a.clear();
    EXPECT_TRUE(a.empty());
  }
}

TEST(SmallVector, ResizesWithFreshElements) {
  Strings a = filled(2);
  a.resize(5);
  EXPECT_EQ(a[4], "");
  a.resize(1);
  EXPECT_EQ(a.size(), 1u);
  EXPECT_EQ(a[0].back(), '0');
  a.push_back(a[0]);
  a.push_back(a[0]);  // grows from an element of itself
  EXPECT_EQ(a[2], a[0]);
}

TEST(SmallVector, DestroysEveryElementOnce) {
  const auto token = std::make_shared<int>(1);
  {
    SmallVector<std::shared_ptr<int>, 2> a;
    for (int i = 0; i < 5; ++i) a.push_back(token);
    EXPECT_EQ(token.use_count(), 6);
    SmallVector<std::shared_ptr<int>, 2> b = a;
    EXPECT_EQ(token.use_count(), 11);
    b = std::move(a);
    EXPECT_EQ(token.use_count(), 6);
  }
  EXPECT_EQ(token.use_count(), 1);
}

struct Counted : RefCounted {
  explicit Counted(int& alive) : alive_(alive) { ++alive_; }
  ~Counted() { --alive_; }
  int& alive_;
};

TEST(IntrusivePtr, DeletesWithTheLastReference) {
  int alive = 0;
  {
    IntrusivePtr<Counted> a = make_intrusive<Counted>(alive);
    IntrusivePtr<Counted> b = a, c;
    EXPECT_EQ(a->use_count(), 2u);
    c = std::move(b);
    EXPECT_FALSE(b);  // NOLINT: a moved-from pointer is null
    EXPECT_EQ(a, c);
    a = a;  // NOLINT
    a.reset();
    EXPECT_EQ(alive, 1);
  }
  EXPECT_EQ(alive, 0);
}

}  // namespace
}  // namespace lockstep
