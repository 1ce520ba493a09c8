// Operations between two ranks, which do not queue behind others.

#include <chrono>
#include <functional>
#include <thread>
#include <tuple>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"
#include "tests/distributed/process_group_support.h"
#include "tests/support/refused_threads.h"

namespace lockstep::distributed {
namespace {

using namespace testing;

class PointToPoint : public ProcessGroupTest {};

INSTANTIATE_TEST_SUITE_P(All, PointToPoint, all_cases(), case_name);

// Rank 2 joins the collective only after rank 1 has met rank 0 point to point, behind what rank 0 has sent for the
// collective already.
TEST(ProcessGroup, PointToPointDoesNotWaitForACollectiveUnderWay) {
  constexpr std::int64_t kSize = 300'000;
  for (const Link link : {Link::in_process, Link::gloo, Link::shm})
    for (const bool tree : {false, true}) {
      if (link == Link::gloo && !gloo::is_available()) continue;
      const auto body = [&](ProcessGroup& group) {
        const Tensor value = ones({kSize}), unit = ones({kSize}), word = zeros({1});
        const auto collective = [&] { return tree ? group.all_reduce_tree(value, unit, 4) : group.all_reduce(value); };
        WorkPtr work;
        if (group.rank() < 2) work = collective();
        if (group.rank() == 0) {
          std::this_thread::sleep_for(Milliseconds(30));  // the collective's blocks go first
          group.send(word, 1)->wait();
        } else if (group.rank() == 1) {
          group.recv(word, 0)->wait();
          group.send(word, 2)->wait();
        } else {
          group.recv(word, 1)->wait();
          work = collective();
        }
        work->wait();
        expect_values(
            value, [](auto) { return 3.0; }, tree ? "all_reduce_tree" : "all_reduce");
      };
      EXPECT_NO_THROW(run_ranks(3, link, body, Milliseconds(3'000))) << name_of(link) << ", tree: " << tree;
    }
}

// What the caller has no Work of must not run later on, and the next one takes its number.
TEST(ProcessGroup, AnOperationWhoseThreadDoesNotStartIsAsIfNeverCalled) {
  run_ranks(2, Link::in_process, [](ProcessGroup& group) {
    const Tensor received = zeros({3});
    group.barrier()->wait();  // every other thread has started
    if (group.rank() == 0) {
      const RefusedThreads refused;
      const std::string error = error_of([&] { group.send(full({3}, 7.0), 1); });
      EXPECT_NE(error.find("cannot start a thread for messages between two ranks"), std::string::npos) << error;
    }
    group.barrier()->wait();
    (group.rank() == 0 ? group.send(ones({3}), 1) : group.recv(received, 0))->wait();
    EXPECT_EQ(received.to_vector<float>(), std::vector<float>(3, group.rank() == 0 ? 0.0f : 1.0f));
  });
}

TEST_P(PointToPoint, SendAndRecvInAnyOrderOfIssue) {
  run([](ProcessGroup& group) {
    const int next = (group.rank() + 1) % group.world_size();
    const int previous = (group.rank() + group.world_size() - 1) % group.world_size();
    for (const std::int64_t size : sizes_for(group)) {
      const Tensor mine = input_of(group, size), twice = input_of(group, size, kFloat64);
      const Tensor theirs = zeros({size}), theirs_twice = zeros({size}, {.dtype = kFloat64});
      // Everybody receives first: would deadlock if operations queued behind each other.
      const WorkPtr recv = group.recv(theirs, previous);
      const WorkPtr recv_twice = group.recv(theirs_twice, previous);
      const WorkPtr send = group.send(mine, next);
      const WorkPtr send_twice = group.send(twice, next);
      for (const WorkPtr& work : {recv_twice, send_twice, send, recv}) work->wait();
      expect_values(
          theirs, [&](auto i) { return element(previous, i); }, "recv");
      expect_values(
          theirs_twice, [&](auto i) { return element(previous, i); }, "second recv");
    }
  });
}

TEST_P(PointToPoint, Exchange) {
  run([](ProcessGroup& group) {
    const int peer = group.rank() ^ 1;
    if (peer >= group.world_size()) return;
    const std::int64_t mine = group.rank() % 2 ? 10 : 70'000, theirs = group.rank() % 2 ? 70'000 : 10;
    for (int round = 0; round < 3; ++round) {
      const Tensor received = zeros({theirs});
      group.exchange(input_of(group, mine), received, peer)->wait();
      expect_values(
          received, [&](auto i) { return element(peer, i); }, "exchange");
    }
  });
}

// What each rank gives does not fit what the other one expects: both hear of it, long before the deadline.
struct Misfit {
  const char* name;
  std::function<void(ProcessGroup&)> call;
  std::vector<const char*> parts;  ///< of every rank's error
};

Tensor ones_of(std::int64_t size, DType dtype) {
  return ones({size}, {.dtype = dtype});
}

const Misfit kMisfits[] = {
    {"OtherDtype",
     [](ProcessGroup& group) {
       group.rank() ? group.recv(ones_of(4, kInt32), 0)->wait() : group.send(ones_of(4, kFloat32), 1)->wait();
     },
     {"send #0 of rank 0 to rank 1 is float32 with 4 elements, and rank 1 expected int32 with 4 elements"}},
    {"FewerElements",
     [](ProcessGroup& group) {
       group.rank() ? group.recv(ones_of(5, kFloat32), 0)->wait() : group.send(ones_of(1, kFloat32), 1)->wait();
     },
     {"send #0 of rank 0 to rank 1 is float32 with 1 element, and rank 1 expected float32 with 5 elements"}},
    {"MoreElementsThanAnyBufferHolds",
     [](ProcessGroup& group) {
       group.rank() ? group.recv(ones_of(5, kFloat32), 0)->wait() : group.send(ones_of(3'000'000, kInt64), 1)->wait();
     },
     {"send #0 of rank 0 to rank 1 is int64 with 3000000 elements, and rank 1 expected float32 with 5 elements"}},
    {"NothingWhereSomethingIsExpected",
     [](ProcessGroup& group) {
       group.rank() ? group.recv(ones_of(5, kFloat32), 0)->wait() : group.send(ones_of(0, kFloat32), 1)->wait();
     },
     {"send #0 of rank 0 to rank 1 is float32 with 0 elements, and rank 1 expected float32 with 5 elements"}},
    {"SomethingWhereNothingIsExpected",
     [](ProcessGroup& group) {
       group.rank() ? group.recv(ones_of(0, kFloat32), 0)->wait() : group.send(ones_of(5, kFloat32), 1)->wait();
     },
     {"send #0 of rank 0 to rank 1 is float32 with 5 elements, and rank 1 expected float32 with 0 elements"}},
    {"TheSecondOfTwo",
     [](ProcessGroup& group) {
       const Tensor value = ones_of(3, kFloat32);
       group.rank() ? group.recv(value, 0)->wait() : group.send(value, 1)->wait();
       group.rank() ? group.recv(value, 0)->wait() : group.send(ones_of(2, kFloat32), 1)->wait();
     },
     {"send #1 of rank 0 to rank 1 is float32 with 2 elements, and rank 1 expected float32 with 3 elements"}},
    {"OneDirectionOfAnExchange",
     [](ProcessGroup& group) {
       const auto take = ones_of(group.rank() ? 4 : 6, kFloat32), give = ones_of(group.rank() ? 6 : 3, kFloat32);
       group.exchange(give, take, 1 - group.rank())->wait();
     },
     {"exchange #0 of rank 0 to rank 1 is float32 with 3 elements, and rank 1 expected float32 with 4 elements"}},
};

class MisfitOver : public ::testing::TestWithParam<std::tuple<Link, Misfit>> {};

INSTANTIATE_TEST_SUITE_P(All, MisfitOver,
                         ::testing::Combine(::testing::Values(Link::in_process, Link::gloo, Link::shm),
                                            ::testing::ValuesIn(kMisfits)),
                         [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + std::get<1>(info.param).name;
                         });

TEST_P(MisfitOver, BothRanksHearOfIt) {
  const auto& [link, misfit] = GetParam();
  if (link == Link::gloo && !gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  const auto start = std::chrono::steady_clock::now();
  const auto errors = errors_of_ranks(2, link, Milliseconds(20'000), [&](ProcessGroup& group) {
    group.barrier()->wait();
    misfit.call(group);
    group.barrier()->wait();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, Milliseconds(15'000));
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("mismatched messages: "), std::string::npos) << error;
    EXPECT_EQ(error.find("timed out"), std::string::npos) << error;
    for (const char* part : misfit.parts) EXPECT_NE(error.find(part), std::string::npos) << part << " in:\n" << error;
  }
}

// Each may still get its counterpart until the deadline; the failure names both.
TEST(Misfit, ASendThatAnExchangeWaitsFor) {
  for (const Link link : {Link::in_process, Link::shm}) {
    const auto errors = errors_of_ranks(2, link, Milliseconds(1'000), [](ProcessGroup& group) {
      if (group.rank() == 0) group.send(ones({3}), 1)->wait();
      if (group.rank() == 1) group.exchange(ones({3}), ones({3}), 0)->wait();
      group.barrier()->wait();
    });
    for (const std::string& error : errors)
      for (const char* text : {"exchange #0 (float32 [3], with rank 0)", "send #0 (float32 [3], to rank 1)"})
        EXPECT_NE(error.find(text), std::string::npos) << text << " in:\n" << error;
  }
}

// Messages name the job's numbers.
TEST(Misfit, InAGroupOfSomeOfTheRanks) {
  for (const Link link : {Link::in_process, Link::shm}) {
    const auto errors = errors_of_ranks(3, link, Milliseconds(20'000), [](ProcessGroup& group) {
      const ProcessGroupPtr part = group.split(group.rank() == 0 ? 0 : 1);
      if (group.rank() == 1) part->send(ones({3}), 1)->wait();
      if (group.rank() == 2) part->recv(ones({5}), 0)->wait();
      group.barrier()->wait();
    });
    for (const std::string& error : errors)
      for (const char* text :
           {"in the group of ranks 1, 2", "mismatched messages: ",
            "send #0 of rank 1 to rank 2 is float32 with 3 elements, and rank 2 expected float32 with 5 elements"})
        EXPECT_NE(error.find(text), std::string::npos) << text << " in:\n" << error;
  }
}

}  // namespace
}  // namespace lockstep::distributed
