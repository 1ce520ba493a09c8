// What ranks tell each other to have something alike.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/distributed/process_group/all_gather_integers.h"
#include "lockstep/distributed/process_group/disagreement.h"
#include "tests/distributed/process_group_support.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

class Agreement : public ProcessGroupTest {};

INSTANTIATE_TEST_SUITE_P(All, Agreement, all_cases(), case_name);

TEST_P(Agreement, IntegersOfEachRankArrive) {
  run([](ProcessGroup& group) {
    const std::int64_t rank = group.rank(), large = std::int64_t{1} << 60;
    const std::vector<std::int64_t> one = all_gather_integers(rank * rank, group);
    const auto two = all_gather_integers(std::array{-rank, large + rank}, group);
    ASSERT_EQ(std::ssize(one), group.world_size());
    ASSERT_EQ(std::ssize(two), group.world_size());
    for (std::int64_t r = 0; r < group.world_size(); ++r) {
      EXPECT_EQ(one[static_cast<std::size_t>(r)], r * r);
      EXPECT_EQ(two[static_cast<std::size_t>(r)], (std::array{-r, large + r}));
    }
  });
}

TEST_P(Agreement, TextsThatDifferAreShown) {
  run([](ProcessGroup& group) {
    EXPECT_FALSE(find_disagreement("", group));
    EXPECT_FALSE(find_disagreement(std::string(10'000, 'x'), group));
    const int last = group.world_size() - 1;
    const auto found = find_disagreement(group.rank() == last ? "that" : "this", group);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->ranks, std::to_string(last));
    EXPECT_EQ(found->other, last);
    EXPECT_EQ(found->of_rank0, "this");
    EXPECT_EQ(found->of_other, "that");
    const auto all = find_disagreement(std::string(static_cast<std::size_t>(group.rank()), 'y'), group);
    ASSERT_TRUE(all);
    EXPECT_EQ(all->ranks.substr(0, 4), last == 1 ? "1" : "1, 2");
    EXPECT_EQ(all->of_rank0, "");
    EXPECT_EQ(all->of_other, "y");
  });
}

}  // namespace
}  // namespace lockstep::distributed
