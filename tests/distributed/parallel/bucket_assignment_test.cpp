#include "lockstep/distributed/parallel/reduction/bucket_assignment.h"

#include <gtest/gtest.h>

namespace lockstep::distributed {
namespace {

using Buckets = std::vector<std::vector<std::size_t>>;

TEST(BucketAssignment, WalksFromLastToFirst) {
  EXPECT_EQ(assign_buckets({{10}, {10}, {10}}, 1, 1), (Buckets{{2}, {1}, {0}}));
}

TEST(BucketAssignment, ClosesTheFirstBucketEarly) {
  EXPECT_EQ(assign_buckets({{4}, {4}, {4}, {4}, {4}}, 4, 8), (Buckets{{4}, {3, 2}, {1, 0}}));
}

TEST(BucketAssignment, LastBucketMayBeShort) {
  EXPECT_EQ(assign_buckets({{4}, {4}, {4}}, 8, 8), (Buckets{{2, 1}, {0}}));
}

TEST(BucketAssignment, KeepsDtypesAndDevicesApart) {
  const std::vector<BucketItem> items = {
      {4, kFloat32, {}}, {4, kFloat16, {}}, {4, kFloat32, {kCPU, 1}}, {4, kFloat32, {}}};
  EXPECT_EQ(assign_buckets(items, 100, 100), (Buckets{{3, 0}, {2}, {1}}));
}

TEST(BucketAssignment, AParameterLargerThanTheLimitIsABucketOfItsOwn) {
  EXPECT_EQ(assign_buckets({{1}, {1000}, {1}}, 10, 10), (Buckets{{2, 1}, {0}}));
}

TEST(BucketAssignment, NothingGivesNothing) {
  EXPECT_TRUE(assign_buckets({}, 1, 1).empty());
}

}  // namespace
}  // namespace lockstep::distributed
