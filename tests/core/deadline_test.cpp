#include "lockstep/core/deadline.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Deadline, TheLongestTimeoutIsAWait) {
  const Deadline deadline = deadline_in(Milliseconds::max());
  EXPECT_FALSE(has_passed(deadline));
  EXPECT_GT(time_left(deadline), kLongestTimeout - Milliseconds(60'000));
  EXPECT_GT(deadline_in(kLongestTimeout) + kLongestTimeout, deadline);
}

TEST(Deadline, AShortOnePasses) {
  EXPECT_TRUE(has_passed(deadline_in(Milliseconds(0))));
  EXPECT_EQ(time_left(deadline_in(Milliseconds(-5))), Milliseconds(0));
  EXPECT_GT(time_left(deadline_in(Milliseconds(1000))), Milliseconds(0));
}

}  // namespace
}  // namespace lockstep
