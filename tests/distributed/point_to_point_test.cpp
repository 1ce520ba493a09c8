// Operations between two ranks, which do not queue behind others.

#include <thread>

#include "lockstep/distributed/process_group/process_group.h"
#include "tests/distributed/process_group_support.h"

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

}  // namespace
}  // namespace lockstep::distributed
