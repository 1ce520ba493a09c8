#include "lockstep/data/sampler.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "lockstep/data/partition.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using namespace lockstep::data;  // NOLINT

using Indices = std::vector<std::int64_t>;

Indices sequence(std::int64_t count) {
  Indices values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), std::int64_t{0});
  return values;
}

Indices sorted(Indices values) {
  std::sort(values.begin(), values.end());
  return values;
}

TEST(Partition, CoversEveryPositionOnceInOrder) {
  for (const std::int64_t count : {0, 1, 2, 7, 64, 65, 1000})
    for (const std::int64_t parts : {1, 2, 3, 4, 8, 100}) {
      std::int64_t next = 0;
      for (std::int64_t part = 0; part < parts; ++part) {
        const Range range = partition(count, parts, part);
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), count / parts);
        EXPECT_LE(range.size(), (count + parts - 1) / parts);
        next = range.end;
      }
      EXPECT_EQ(next, count);
    }
}

TEST(Partition, RefusesPartsThatDoNotExist) {
  EXPECT_EQ(error_of([] { partition(4, 2, 2); }), "[partition] part 2 of 2 does not exist; expected 0 to 1");
  EXPECT_NE(error_of([] { partition(-1, 2, 0); }).find("must not be negative, found -1"), std::string::npos);
}

TEST(Partition, BatchesCoverAnEpoch) {
  EXPECT_EQ(batch_count(10, 4, false), 3);
  EXPECT_EQ(batch_count(10, 4, true), 2);
  EXPECT_EQ(batch_count(8, 4, true), 2);
  EXPECT_EQ(batch_count(0, 4, false), 0);
  EXPECT_EQ(batch_range(10, 4, 0), (Range{0, 4}));
  EXPECT_EQ(batch_range(10, 4, 2), (Range{8, 10}));
  EXPECT_NE(error_of([] { batch_range(10, 4, 3); }).find("step 3 lies outside"), std::string::npos);
  EXPECT_NE(error_of([] { batch_count(10, 0, false); }).find("batch size must be at least 1, found 0"),
            std::string::npos);
}

TEST(Sampler, SequentialIsTheIdentity) {
  EXPECT_EQ(SequentialSampler(4).indices(), (Indices{0, 1, 2, 3}));
  EXPECT_EQ(SequentialSampler(0).indices(), Indices{});
}

TEST(Sampler, RandomIsAPermutationThatDependsOnSeedAndEpoch) {
  for (const std::int64_t count : {0, 1, 2, 3, 10, 1001}) {
    const RandomSampler sampler(count, 7);
    EXPECT_EQ(sorted(sampler.indices(3)), sequence(count));
    EXPECT_EQ(sampler.indices(3), RandomSampler(count, 7).indices(3)) << "the same key gives the same order";
  }
  std::set<Indices> orders;
  for (std::uint64_t seed = 0; seed < 4; ++seed)
    for (std::uint64_t epoch = 0; epoch < 4; ++epoch) orders.insert(epoch_permutation(100, seed, epoch));
  EXPECT_EQ(orders.size(), 16u);
}

TEST(Sampler, TheOrderIsFixedForAllTime) {
  // Checkpoints resume into this order: it may never change.
  EXPECT_EQ(epoch_permutation(10, 1, 0), (Indices{8, 9, 2, 0, 4, 6, 5, 1, 7, 3}));
  EXPECT_EQ(epoch_permutation(11, 99, 3), (Indices{3, 10, 6, 4, 9, 7, 1, 0, 8, 2, 5}));
}

TEST(Sampler, EveryOrderIsEquallyLikely) {
  // 24 orders of 4 elements over 24000 epochs: chi-square with 23 degrees of freedom is below 49.7 with p = 0.999.
  std::vector<int> counts(256);
  constexpr int kEpochs = 24000;
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Indices order = epoch_permutation(4, 5, epoch);
    ++counts[static_cast<std::size_t>(order[0] * 64 + order[1] * 16 + order[2] * 4 + order[3])];
  }
  double chi_square = 0.0;
  int orders = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    ++orders;
    chi_square += (count - 1000.0) * (count - 1000.0) / 1000.0;
  }
  EXPECT_EQ(orders, 24);
  EXPECT_LT(chi_square, 49.7);
}

struct Case {
  std::int64_t count;
  int world;
  bool drop_last;
  std::int64_t per_rank;
};

class Distributed : public ::testing::TestWithParam<Case> {};

TEST_P(Distributed, SharesAnEpochAsTorchDoes) {
  const auto [count, world, drop_last, per_rank] = GetParam();
  Indices together(static_cast<std::size_t>(per_rank * world));
  for (int rank = 0; rank < world; ++rank) {
    const DistributedSampler sampler(
        count, {.rank = rank, .world_size = world, .shuffle = true, .seed = 3, .drop_last = drop_last});
    EXPECT_EQ(sampler.size(), per_rank);
    const Indices mine = sampler.indices(2);
    ASSERT_EQ(static_cast<std::int64_t>(mine.size()), per_rank);
    for (std::int64_t i = 0; i < per_rank; ++i)
      together[static_cast<std::size_t>(rank + i * world)] = mine[static_cast<std::size_t>(i)];
  }
  // The ranks' shares, dealt out in turn, are the common order: cut off at the end, or repeated from its start.
  Indices expected = epoch_permutation(count, 3, 2);
  for (std::size_t i = 0; expected.size() < together.size(); ++i) expected.push_back(expected[i]);
  expected.resize(together.size());
  EXPECT_EQ(together, expected);
}

INSTANTIATE_TEST_SUITE_P(All, Distributed,
                         ::testing::Values(Case{10, 1, false, 10}, Case{10, 2, false, 5}, Case{10, 3, false, 4},
                                           Case{10, 3, true, 3}, Case{10, 4, true, 2}, Case{2, 8, false, 1},
                                           Case{3, 8, true, 0}, Case{12, 4, true, 3}, Case{1, 5, false, 1}));

TEST(Sampler, DistributedKnowsItsEpochAndOrder) {
  DistributedSampler sampler(8, {.rank = 1, .world_size = 2, .shuffle = false});
  EXPECT_EQ(sampler.indices(), (Indices{1, 3, 5, 7}));
  DistributedSampler shuffled(8, {.rank = 1, .world_size = 2});
  shuffled.set_epoch(4);
  EXPECT_EQ(shuffled.indices(), shuffled.indices(4));
  EXPECT_NE(shuffled.indices(), shuffled.indices(0));
}

TEST(Sampler, BadArgumentsAreRefused) {
  EXPECT_NE(error_of([] { DistributedSampler(8, {.rank = 2, .world_size = 2}); }).find("rank 2 of world size 2"),
            std::string::npos);
  EXPECT_NE(error_of([] { RandomSampler(-1); }).find("must not be negative, found -1"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
