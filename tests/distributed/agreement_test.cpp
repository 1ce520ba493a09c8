// What ranks tell each other to have something alike.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/distributed/process_group/all_gather_integers.h"
#include "lockstep/distributed/process_group/coalesced.h"
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

TEST_P(Agreement, TensorsOfAnyKindAreTheRoots) {
  run([](ProcessGroup& group) {
    const int root = group.world_size() - 1;
    const double own = group.rank() == root ? 3.0 : 0.0;
    for (const std::size_t buffer_bytes : {1, 64, 1 << 20}) {
      const Tensor wide = full({4, 6}, own);
      const std::vector<Tensor> tensors{full({5}, own),
                                        full({2, 3}, own, {.dtype = kInt64}),
                                        full({0, 2}, own),
                                        wide.as_strided({6, 4}, {1, 6}, 0),
                                        full({}, own, {.dtype = kFloat16}),
                                        full({7}, own),
                                        wide.as_strided({4}, {6}, 2)};
      std::vector<std::uint32_t> versions;
      for (const Tensor& each : tensors) versions.push_back(each.storage()->version());
      broadcast_coalesced(tensors, group, root, buffer_bytes);
      for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(group.rank() == root || tensors[i].storage()->version() > versions[i]) << i;
        expect_values(
            tensors[i].detach(), [](auto) { return 3.0; }, "broadcast_coalesced");
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::distributed
