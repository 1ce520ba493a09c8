// Ranks that call different collectives: each of them hears of it, in the next collective at the latest, also where
// nobody has waited for what never came.

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <ostream>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/core/factories.h"
#include "lockstep/distributed/gloo/gloo.h"
#include "tests/distributed/ranks.h"

namespace lockstep::distributed {
namespace {

using testing::Link;

struct Mismatch {
  const char* name;
  int world_size;
  std::function<void(ProcessGroup&)> call;
  std::vector<const char*> parts;  ///< of every rank's error
};

const Mismatch kMismatches[] = {
    {"OtherRootOfABroadcast",
     2,
     [](ProcessGroup& group) { group.broadcast(ones({3}), group.rank() % 2)->wait(); },
     {"rank 1 called broadcast #1 (float32 [3], root 1)", "broadcast #1 (float32 [3], root 0)"}},
    {"OtherRootOfABroadcastOfThree",
     3,
     [](ProcessGroup& group) { group.broadcast(ones({3}), group.rank() == 1 ? 1 : 0)->wait(); },
     {"rank 1 called broadcast #1 (float32 [3], root 1)", "broadcast #1 (float32 [3], root 0)"}},
    {"OtherRootOfAScatter",
     2,
     [](ProcessGroup& group) { group.scatter(ones({2}), ones({4}), group.rank())->wait(); },
     {"rank 1 called scatter #1 (float32 [2], root 1)", "scatter #1 (float32 [2], root 0)"}},
    {"OtherRootAndShape",
     2,
     [](ProcessGroup& group) { group.broadcast(ones({3 + 2 * group.rank()}), group.rank())->wait(); },
     {"rank 1 called broadcast #1 (float32 [5], root 1)", "broadcast #1 (float32 [3], root 0)"}},
    {"OtherRootAndDtype",
     2,
     [](ProcessGroup& group) {
       group.broadcast(ones({4}, {.dtype = group.rank() ? kInt64 : kFloat32}), group.rank())->wait();
     },
     {"rank 1 called broadcast #1 (int64 [4], root 1)", "broadcast #1 (float32 [4], root 0)"}},
    {"OtherRootAndOperation",
     2,
     [](ProcessGroup& group) {
       group.rank() ? group.scatter(ones({2}), ones({4}), 1)->wait() : group.broadcast(ones({2}), 0)->wait();
     },
     {"rank 1 called scatter #1 (float32 [2], root 1)", "broadcast #1 (float32 [2], root 0)"}},
    {"OtherShapeThanTheRoots",
     2,
     [](ProcessGroup& group) { group.broadcast(ones({3 + group.rank()}), 0)->wait(); },
     {"rank 1 called broadcast #1 (float32 [4], root 0)", "broadcast #1 (float32 [3], root 0)"}},
    {"NothingWhereTheRootSendsSomething",
     2,
     [](ProcessGroup& group) { group.broadcast(ones({group.rank() ? 0 : 4}), 0)->wait(); },
     {"broadcast #1 (float32 [0], root 0)", "broadcast #1 (float32 [4], root 0)"}},
    {"NothingToAddUp",
     3,
     [](ProcessGroup& group) { group.all_reduce(ones({group.rank() == 1 ? 0 : 4}))->wait(); },
     {"rank 1 called all_reduce #1 (float32 [0], sum)", "all_reduce #1 (float32 [4], sum)"}},
    {"OtherRootOfAnObject",
     2,
     [](ProcessGroup& group) { group.broadcast_object("from" + std::to_string(group.rank()), group.rank()); },
     {"rank 1 called broadcast #1 (int64 [1], root 1; object)", "broadcast #1 (int64 [1], root 0; object)"}},
};

class Mismatched : public ::testing::TestWithParam<std::tuple<Link, Mismatch>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == Link::gloo && !gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  }
};

INSTANTIATE_TEST_SUITE_P(All, Mismatched,
                         ::testing::Combine(::testing::Values(Link::in_process, Link::gloo, Link::shm),
                                            ::testing::ValuesIn(kMismatches)),
                         [](const auto& info) {
                           return testing::name_of(std::get<0>(info.param)) + std::get<1>(info.param).name;
                         });

TEST_P(Mismatched, EveryRankHearsOfIt) {
  const Link link = std::get<0>(GetParam());
  const Mismatch& mismatch = std::get<1>(GetParam());
  const auto errors =
      testing::errors_of_ranks(mismatch.world_size, link, Milliseconds(2'000), [&](ProcessGroup& group) {
        group.barrier()->wait();
        mismatch.call(group);
        group.barrier()->wait();
      });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("mismatched collectives: "), std::string::npos) << error;
    EXPECT_EQ(error.find("timed out"), std::string::npos) << error;
    for (const char* part : mismatch.parts) EXPECT_NE(error.find(part), std::string::npos) << part << " in:\n" << error;
  }
}

class MismatchedOver : public ::testing::TestWithParam<Link> {};

INSTANTIATE_TEST_SUITE_P(All, MismatchedOver, ::testing::Values(Link::in_process, Link::shm),
                         [](const auto& info) { return testing::name_of(info.param); });

// The mismatch has left nobody waiting, and the calls after it are the same.
TEST_P(MismatchedOver, InAGroupOfSomeOfTheRanks) {
  const auto errors = testing::errors_of_ranks(3, GetParam(), Milliseconds(2'000), [](ProcessGroup& group) {
    const ProcessGroupPtr part = group.split(group.rank() == 0 ? 0 : 1);
    if (group.rank() > 0) {
      part->broadcast(ones({3}), part->rank())->wait();
      part->all_reduce(ones({2}))->wait();
    }
    group.barrier()->wait();
  });
  for (const std::string& error : errors)
    for (const char* part :
         {"in the group of ranks 1, 2", "mismatched collectives: ", "rank 2 called broadcast #0 (float32 [3], root 1)",
          "rank 1 called broadcast #0 (float32 [3], root 0)"})
      EXPECT_NE(error.find(part), std::string::npos) << part << " in:\n" << error;
}

// Rank 0 is the root of several broadcasts, of which rank 1 takes the first for another.
TEST_P(MismatchedOver, TheEarliestIsNamed) {
  const auto errors = testing::errors_of_ranks(2, GetParam(), Milliseconds(2'000), [](ProcessGroup& group) {
    group.broadcast(ones({group.rank() ? 2 : 3}), 0)->wait();
    for (int i = 0; i < 5; ++i) group.broadcast(ones({3}), 0)->wait();
    group.barrier()->wait();
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("rank 1 called broadcast #0 (float32 [2], root 0)"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 0 called broadcast #0 (float32 [3], root 0)"), std::string::npos) << error;
  }
}

// Nothing comes after it that could find it out.
TEST(MismatchedOverShm, TheLastCollectiveEndsWithAnError) {
  std::atomic<bool> sent = false;
  const auto errors = testing::errors_of_ranks(2, Link::shm, Milliseconds(2'000), [&](ProcessGroup& group) {
    group.barrier()->wait();
    while (group.rank() == 1 && !sent) std::this_thread::yield();
    group.broadcast(ones({3}), group.rank())->wait();
    sent = true;
  });
  for (const char* part : {"[Rank 1] broadcast #1", "mismatched collectives: rank 1 called broadcast #1",
                           "rank 0 has sent to this one in a collective that has ended here without it"})
    EXPECT_NE(errors[1].find(part), std::string::npos) << part << " in:\n" << errors[1];
}

TEST(MismatchedOverShm, WhatStaysUnreadIsToldOfInAWarning) {
  ::testing::internal::CaptureStderr();
  testing::run_ranks(2, Link::shm, [](ProcessGroup& group) {
    if (group.rank() == 0) group.send(ones({3}), 1)->wait();
    group.barrier()->wait();
  });
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("warning: "), std::string::npos) << text;
  EXPECT_NE(text.find("after barrier #0, with a message from rank 0 that nobody has received"), std::string::npos)
      << text;
}

// Collectives in which each rank only sends: what the other has sent is noticed all the same.
TEST(MismatchedOverShm, WhereNobodyEverWaits) {
  std::atomic<int> turns = 0;
  const auto errors = testing::errors_of_ranks(2, Link::shm, Milliseconds(2'000), [&](ProcessGroup& group) {
    const int root = group.rank();
    for (int i = 0; i < 2; ++i) {
      for (++turns; turns < 2 * (i + 1);) std::this_thread::yield();
      try {
        group.broadcast(ones({3}), root)->wait();
      } catch (const Error&) {
        turns = 4;
        throw;
      }
    }
    group.scatter(ones({2}), ones({4}), root)->wait();
  });
  for (const std::string& error : errors)
    for (const char* part : {"mismatched collectives: ", "rank 1 called broadcast #0 (float32 [3], root 1)",
                             "broadcast #0 (float32 [3], root 0)"})
      EXPECT_NE(error.find(part), std::string::npos) << part << " in:\n" << error;
}

// Messages between two ranks belong to no collective, and may stay unread as long as the program likes.
TEST_P(MismatchedOver, MessagesBetweenTwoRanksAreNone) {
  testing::run_ranks(2, GetParam(), [](ProcessGroup& group) {
    const bool sends = group.rank() == 0;
    const Tensor early = sends ? full({3}, 7) : zeros({3}), late = sends ? full({5}, 9) : zeros({5});
    if (sends) {
      group.send(early, 1)->wait();
      group.send(late, 1)->wait();
    }
    for (int root = 0; root < 2; ++root) group.broadcast(ones({4}), root)->wait();
    group.all_reduce(zeros({0}))->wait();
    group.barrier()->wait();
    if (group.rank() == 1) {
      const WorkPtr first = group.recv(early, 0), second = group.recv(late, 0);
      second->wait();
      first->wait();
      EXPECT_EQ(early.to_vector<float>(), std::vector<float>(3, 7.0F));
      EXPECT_EQ(late.to_vector<float>(), std::vector<float>(5, 9.0F));
    }
    group.barrier()->wait();
  });
}

}  // namespace
}  // namespace lockstep::distributed
