#include "lockstep/distributed/parallel/shares.h"

#include <gtest/gtest.h>

namespace lockstep::distributed {
namespace {

using Ranges = std::vector<data::Range>;

Ranges ranges_of(const std::vector<Share>& shares) {
  Ranges ranges;
  for (const Share& share : shares) ranges.push_back(share.samples);
  return ranges;
}

TEST(Shares, SlicesCoverAPartLargerOnesFirst) {
  EXPECT_EQ(ranges_of(slices_of_part(7, 3, false)), (Ranges{{0, 3}, {3, 5}, {5, 7}}));
  EXPECT_EQ(ranges_of(slices_of_part(7, 1, false)), (Ranges{{0, 7}}));
}

TEST(Shares, SlicesWithoutSamplesAreLeftOutUnlessAskedFor) {
  EXPECT_EQ(slices_of_part(2, 4, false).size(), 2u);
  EXPECT_EQ(ranges_of(slices_of_part(2, 4, true)), (Ranges{{0, 1}, {1, 2}, {2, 2}, {2, 2}}));
  EXPECT_TRUE(slices_of_part(0, 4, false).empty());
}

TEST(Shares, ShardsOfAllWorkersCoverTheBatchOnce) {
  for (const int workers : {1, 2, 3, 5, 8})
    for (const std::int64_t size : {0, 3, 8, 61}) {
      std::int64_t next = 0, index = 0;
      for (int w = 0; w < workers; ++w) {
        const data::Range mine = samples_of_worker(size, 8, workers, w);
        EXPECT_EQ(mine.begin, next);
        for (const Share& share : shards_of_part(size, 8, shards_of_worker(8, workers, w))) {
          EXPECT_EQ(share.index, index++);  // those without samples are at the end of the batch
          EXPECT_EQ(share.samples.begin + mine.begin, next);
          EXPECT_GT(share.samples.size(), 0);
          next += share.samples.size();
        }
        EXPECT_EQ(mine.end, next);
      }
      EXPECT_EQ(next, size);
    }
}

TEST(Shares, WithoutShardsAPartIsAPartition) {
  for (int w = 0; w < 3; ++w) EXPECT_EQ(samples_of_worker(7, 0, 3, w), data::partition(7, 3, w));
}

}  // namespace
}  // namespace lockstep::distributed
