// Pipeline schedules and the cutting of layers, which are pure functions.

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "lockstep/distributed/pipeline_parallel/schedule.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using lockstep::testing::error_of;
using Pass = PipelineAction::Pass;
using enum PipelineSchedule;
using Lists = std::vector<std::vector<PipelineAction>>;

Lists lists_of(PipelineSchedule schedule, std::int64_t micro_batches, int stages, int chunks = 1) {
  Lists lists;
  for (int s = 0; s < stages; ++s) lists.push_back(pipeline_actions(schedule, micro_batches, stages, chunks, s));
  return lists;
}

const char* letter_of(Pass pass) {
  return pass == Pass::forward ? "F" : pass == Pass::backward ? "B" : pass == Pass::input ? "I" : "W";
}

std::string text_of(const std::vector<PipelineAction>& actions) {
  std::string text;
  for (const PipelineAction& action : actions)
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", letter_of(action.pass), action.micro_batch);
  return text;
}

/// Every micro-batch goes forward and backward once through each chunk of the stage, in order, and what an action needs
/// has been made before it.
void expect_sound(PipelineSchedule schedule, std::int64_t m, int p, int k) {
  SCOPED_TRACE(fmt::format("{}: {} micro-batches, {} stages, {} chunks", to_string(schedule), m, p, k));
  const Lists lists = lists_of(schedule, m, p, k);
  for (int s = 0; s < p; ++s) {
    const auto& list = lists[static_cast<std::size_t>(s)];
    ASSERT_EQ(std::ssize(list), (schedule == zero_bubble ? 3 : 2) * m * k);
    std::map<std::pair<Pass, int>, std::int64_t> next;
    for (const PipelineAction& action : list) {
      ASSERT_EQ(action.chunk % p, s);
      ASSERT_LT(action.chunk, p * k);
      ASSERT_EQ(action.micro_batch, (next[{action.pass, action.chunk}]++)) << "in order, each once";
      if (action.pass == Pass::weights) {
        ASSERT_LT(action.micro_batch, (next[{Pass::input, action.chunk}])) << "after its input's";
      } else if (action.pass != Pass::forward) {
        ASSERT_LT(action.micro_batch, (next[{Pass::forward, action.chunk}])) << "after its forward";
      }
    }
  }
  const PipelineTiming timing = time_of(lists);
  ASSERT_TRUE(timing.completes) << "a stage waits for what never comes";
}

TEST(PipelineScheduleOf, AnyNumbersIsSound) {
  for (const int p : {1, 2, 3, 4, 8})
    for (std::int64_t m = 0; m <= 13; ++m) {
      expect_sound(gpipe, m, p, 1);
      expect_sound(one_forward_one_backward, m, p, 1);
      for (const int k : {1, 2, 3}) {
        expect_sound(interleaved, m, p, k);
        expect_sound(zero_bubble, m, p, k);
      }
    }
}

TEST(PipelineScheduleOf, IsWhatThePapersDraw) {
  EXPECT_EQ(text_of(pipeline_actions(gpipe, 3, 2, 1, 0)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(text_of(pipeline_actions(one_forward_one_backward, 4, 3, 1, 0)), "F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(text_of(pipeline_actions(one_forward_one_backward, 4, 3, 1, 2)), "F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(text_of(pipeline_actions(zero_bubble, 4, 3, 1, 0)), "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3");
  EXPECT_EQ(text_of(pipeline_actions(zero_bubble, 4, 3, 1, 2)), "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3");
  const auto chunks_of = [](const std::vector<PipelineAction>& actions) {
    std::string text;
    for (const PipelineAction& action : actions)
      text += fmt::format("{}{}.{} ", action.pass == Pass::forward ? "F" : "B", action.chunk, action.micro_batch);
    return text;
  };
  EXPECT_EQ(chunks_of(pipeline_actions(interleaved, 4, 2, 2, 1)),
            "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 F1.2 B1.0 F1.3 B1.1 F3.2 B3.2 F3.3 B3.3 B1.2 B1.3 ");
}

// Held at once: all with GPipe, p - s with 1F1B.
TEST(PipelineScheduleOf, HoldsWhatItMust) {
  for (const int p : {1, 2, 4, 7})
    for (const std::int64_t m : {1, 3, 8, 16}) {
      const PipelineTiming all = time_of(lists_of(gpipe, m, p)),
                           few = time_of(lists_of(one_forward_one_backward, m, p));
      for (int s = 0; s < p; ++s) {
        EXPECT_EQ(all.held[static_cast<std::size_t>(s)], m);
        EXPECT_EQ(few.held[static_cast<std::size_t>(s)], std::min<std::int64_t>(m, p - s));
      }
    }
}

TEST(PipelineScheduleOf, WaitsAsLongAsTheFormulaSays) {
  for (const int p : {1, 2, 4, 8})
    for (const std::int64_t m : {1, 2, 5, 8, 32})
      for (const double backward : {1.0, 2.0, 2.5}) {
        const double expected = (p - 1.0) / static_cast<double>(m + p - 1);
        EXPECT_NEAR(time_of(lists_of(gpipe, m, p), 1.0, backward).bubble(), expected, 1e-12);
        EXPECT_NEAR(time_of(lists_of(one_forward_one_backward, m, p), 1.0, backward).bubble(), expected, 1e-12);
        if (m % p != 0) continue;
        for (const int k : {2, 4})
          EXPECT_NEAR(time_of(lists_of(interleaved, m, p, k), 1.0, backward).bubble(),
                      (p - 1.0) / static_cast<double>(k * m + p - 1), 1e-12)
              << p << " stages, " << m << " micro-batches, " << k << " chunks";
      }
}

// A third of 1F1B's, with as many micro-batches on every stage as that has on the first.
TEST(PipelineScheduleOf, ZeroBubbleWaitsAThird) {
  for (const int p : {1, 2, 4, 8})
    for (const std::int64_t m : {8, 9, 32}) {
      const PipelineTiming timing = time_of(lists_of(zero_bubble, m, p));
      EXPECT_NEAR(timing.bubble(), (p - 1.0) / static_cast<double>(3 * m + p - 1), 1e-12) << p << " stages, " << m;
      for (const std::int64_t held : timing.held) EXPECT_EQ(held, p);
      if (m % p != 0) continue;
      for (const int k : {2, 3}) {
        const Lists lists = lists_of(zero_bubble, m, p, k);
        EXPECT_NEAR(time_of(lists).bubble(), (p - 1.0) / static_cast<double>(3 * k * m + p - 1), 1e-12) << p << m << k;
        std::vector<int> tied(static_cast<std::size_t>(p * k), -1);  // to the last chunk: it has long been there
        tied.front() = p * k - 1;
        EXPECT_EQ(time_of(lists, 1.0, 2.0, tied).total, time_of(lists).total);
      }
    }
}

// First and last stage have a parameter in common, and its gradient travels for each micro-batch.
TEST(PipelineScheduleOf, ZeroBubbleWaitsForTiedGradientsWithoutStanding) {
  for (const int p : {2, 3, 4, 8})
    for (const std::int64_t m : {1, 2, 5, 16}) {
      std::vector<int> tied(static_cast<std::size_t>(p), -1);
      tied.front() = p - 1;
      Lists lists;
      for (int s = 0; s < p; ++s) lists.push_back(pipeline_actions(zero_bubble, m, p, 1, s, tied));
      const PipelineTiming timing = time_of(lists, 1.0, 2.0, tied);
      ASSERT_TRUE(timing.completes);
      EXPECT_LE(timing.total, 3.0 * static_cast<double>(m) + (m < 8 ? 3.0 : 1.75) * (p - 1) + 1) << p << ", " << m;
      EXPECT_LE(*std::ranges::max_element(timing.held), 2 * p);
    }
  // Without leaving them behind, the first stage would stand for each.
  const std::vector<int> tied{1, -1};
  EXPECT_GE(time_of(lists_of(zero_bubble, 16, 2), 1.0, 2.0, tied).total, 3.0 * 16 + 16);
}

// A list whose backward comes before its forward does not complete: the check of the tests above can fail.
TEST(PipelineScheduleOf, AListOutOfOrderDoesNotComplete) {
  Lists lists = lists_of(one_forward_one_backward, 3, 2);
  std::swap(lists[1][0], lists[1][1]);
  EXPECT_FALSE(time_of(lists).completes);
  lists = lists_of(gpipe, 3, 2);
  lists[0].pop_back();
  lists[0].erase(lists[0].begin());
  EXPECT_FALSE(time_of(lists).completes);
}

TEST(PipelineScheduleOf, NumbersOutOfRangeAreRefused) {
  EXPECT_NE(error_of([] { pipeline_actions(gpipe, 3, 2, 1, 2); }).find("there is no stage 2"), std::string::npos);
  EXPECT_NE(error_of([] { pipeline_actions(gpipe, 3, 2, 2, 0); }).find("for the schedules interleaved and zero-bubble"),
            std::string::npos);
  for (const PipelineSchedule each : {gpipe, one_forward_one_backward, interleaved, zero_bubble})
    EXPECT_EQ(parse_pipeline_schedule(to_string(each)), each);
  EXPECT_NE(
      error_of([] { parse_pipeline_schedule("zigzag"); }).find("expected gpipe, 1f1b, interleaved or zero-bubble"),
      std::string::npos);
}

// Against all possible cuts.
TEST(BalancedCuts, MakeTheDearestPartAsCheapAsPossible) {
  for (std::uint32_t seed = 1; seed <= 40; ++seed) {
    std::vector<double> costs;
    std::uint32_t value = seed * 7919;
    for (std::uint32_t i = 0; i < 3 + seed % 6; ++i) costs.push_back((value = value * 1103515245 + 12345) >> 28);
    for (std::size_t parts = 1; parts <= std::min<std::size_t>(costs.size(), 4); ++parts) {
      const auto dearest = [&](const std::vector<std::size_t>& cuts) {
        double most = 0.0;
        for (std::size_t k = 0; k < cuts.size(); ++k) {
          const std::size_t end = k + 1 < cuts.size() ? cuts[k + 1] : costs.size();
          EXPECT_LT(cuts[k], end) << "an empty part";
          most = std::max(most, std::accumulate(costs.begin() + static_cast<std::ptrdiff_t>(cuts[k]),
                                                costs.begin() + static_cast<std::ptrdiff_t>(end), 0.0));
        }
        return most;
      };
      double best = -1.0;
      for (std::uint32_t mask = 0; mask < 1u << (costs.size() - 1); ++mask) {
        std::vector<std::size_t> cuts{0};
        for (std::size_t i = 1; i < costs.size(); ++i)
          if (mask >> (i - 1) & 1) cuts.push_back(i);
        if (cuts.size() != parts) continue;
        const double one = dearest(cuts);
        best = best < 0.0 ? one : std::min(best, one);
      }
      EXPECT_EQ(dearest(balanced_cuts(costs, parts)), best);
    }
  }
  EXPECT_NE(error_of([] {
              balanced_cuts({1.0, 1.0}, 3);
            }).find("2 layers cannot be cut into 3 chunks"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
