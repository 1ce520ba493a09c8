// The shared memory transport by itself; what process groups do on it is in process_group_test.cpp.

#include "lockstep/distributed/shm/shm.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "lockstep/distributed/shm/shm_transport.h"
#include "lockstep/distributed/store/hash_store.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed::shm {
namespace {

using std::chrono::steady_clock;
using testing::error_of;

Deadline in_seconds(int seconds) {
  return steady_clock::now() + std::chrono::seconds(seconds);
}

std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed) {
  std::vector<unsigned char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<unsigned char>((i * 31 + i / 251 + seed) & 255);
  return data;
}

/// The next bytes of a view, when they are there.
const void* read(Transport::View& view, std::size_t bytes) {
  view.wait(bytes, in_seconds(10));
  return view.next(bytes);
}

/// Two ranks of this process.
struct Pair {
  Pair() {
    Segment first = Segment::create(2);
    Segment second = Segment::open(first.ticket(), 2);
    first.close_file();
    ring_bytes = first.ring_bytes();
    for (int r : {0, 1}) first.rank(r).pid = getpid();
    zero = std::make_unique<ShmTransport>(std::move(first), 0, 2);
    one = std::make_unique<ShmTransport>(std::move(second), 1, 2);
  }
  std::size_t ring_bytes = 0;
  std::unique_ptr<ShmTransport> zero, one;
};

TEST(ShmTransport, MessagesLargerThanTheRingPassEachOther) {
  Pair pair;
  const std::size_t bytes = 3 * pair.ring_bytes + 12'345;
  const auto mine = pattern(bytes, 1), theirs = pattern(bytes, 2);
  std::vector<unsigned char> at_zero(bytes), at_one(bytes);
  const auto both = [&](ShmTransport& transport, int peer, const auto& out, auto& in) {
    const auto send = transport.send(peer, 7, out.data(), bytes), recv = transport.recv(peer, 7, in.data(), bytes);
    recv->wait(in_seconds(30));
    send->wait(in_seconds(30));
  };
  std::thread other([&] { both(*pair.one, 0, theirs, at_one); });
  both(*pair.zero, 1, mine, at_zero);
  other.join();
  EXPECT_TRUE(at_zero == theirs);
  EXPECT_TRUE(at_one == mine);
}

TEST(ShmTransport, MessagesAreMetByTagAndThenInOrder) {
  Pair pair;
  const std::vector<std::size_t> sizes = {5, 70'000, 5, 1, 300'000};
  const std::vector<std::uint64_t> tags = {1, 2, 1, 3, 4};
  std::vector<std::vector<unsigned char>> sent, got;
  std::vector<std::unique_ptr<Transport::Request>> sends;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    sent.push_back(pattern(sizes[i], static_cast<unsigned>(i)));
    got.emplace_back(sizes[i]);
    sends.push_back(pair.zero->send(1, tags[i], sent[i].data(), sizes[i]));
  }
  // The last one first: those before it move aside.
  for (const std::size_t i : {4u, 3u, 0u, 1u, 2u})
    pair.one->recv(0, tags[i], got[i].data(), sizes[i])->wait(in_seconds(10));
  for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_TRUE(got[i] == sent[i]) << i;
}

TEST(ShmTransport, ViewsReadOddPiecesAroundTheEndOfTheRing) {
  Pair pair;
  const std::size_t bytes = pair.ring_bytes / 3 + 777, step = 60'001;
  std::vector<unsigned char> room(bytes);
  for (unsigned round = 0; round < 10; ++round) {
    const auto sent = pattern(bytes, round);
    const auto send = pair.zero->send(1, round, sent.data(), bytes);
    const auto view = pair.one->view(0, round, room.data(), bytes);
    for (std::size_t at = 0; at < bytes; at += step) {
      const std::size_t length = std::min(step, bytes - at);
      ASSERT_EQ(std::memcmp(read(*view, length), sent.data() + at, length), 0) << round << ", " << at;
      view->release();
    }
    send->wait(in_seconds(10));
  }
}

TEST(ShmTransport, AViewOfAMessageThatCameEarly) {
  Pair pair;
  const auto first = pattern(100'000, 1), second = pattern(1'000, 2);
  const auto send_first = pair.zero->send(1, 1, first.data(), first.size());
  const auto send_second = pair.zero->send(1, 2, second.data(), second.size());
  std::vector<unsigned char> room(first.size()), got(second.size());
  pair.one->recv(0, 2, got.data(), got.size())->wait(in_seconds(10));
  EXPECT_TRUE(got == second);
  const auto view = pair.one->view(0, 1, room.data(), room.size());
  EXPECT_EQ(std::memcmp(read(*view, 60'000), first.data(), 60'000), 0);
  view->release();
  EXPECT_EQ(std::memcmp(read(*view, 40'000), first.data() + 60'000, 40'000), 0);
}

TEST(ShmTransport, AReceiveDoesNotWaitForAViewThatNobodyReads) {
  for (const bool begun : {false, true}) {
    Pair pair;
    // More than the ring holds: all of it must leave the ring.
    const auto first = pattern(2 * pair.ring_bytes, 1), second = pattern(1'000, 2);
    std::thread sender([&] {
      const auto send_first = pair.zero->send(1, 1, first.data(), first.size());
      const auto send_second = pair.zero->send(1, 2, second.data(), second.size());
      for (const auto& send : {send_first.get(), send_second.get()}) send->wait(in_seconds(10));
    });
    std::vector<unsigned char> room(first.size()), got(second.size());
    const auto view = pair.one->view(0, 1, room.data(), room.size());
    std::size_t at = 0;
    if (begun) {
      EXPECT_EQ(std::memcmp(read(*view, 60'000), first.data(), 60'000), 0);
      view->release();
      at = 60'000;
    }
    view->wait(10'000, in_seconds(10));
    pair.one->recv(0, 2, got.data(), got.size())->wait(in_seconds(10));
    EXPECT_TRUE(got == second);
    for (std::size_t length = 0; at < first.size(); at += length) {
      length = std::min<std::size_t>(50'000, first.size() - at);
      ASSERT_EQ(std::memcmp(read(*view, length), first.data() + at, length), 0) << at;
      view->release();
    }
    sender.join();
  }
}

TEST(ShmTransport, RequestsThatAreGivenUpDoNotHarmTheNext) {
  Pair pair;
  const auto sent = pattern(200'000, 3);
  std::vector<unsigned char> got(sent.size());
  { const auto unmet = pair.one->recv(0, 1, got.data(), got.size()); }
  { const auto left = pair.one->view(0, 1, got.data(), got.size()); }
  const auto send = pair.zero->send(1, 1, sent.data(), sent.size());
  {
    const auto view = pair.one->view(0, 1, got.data(), got.size());
    read(*view, 1'000);
    view->release();
  }
  const auto again = pair.zero->send(1, 1, sent.data(), sent.size());
  pair.one->recv(0, 1, got.data(), got.size())->wait(in_seconds(10));
  EXPECT_TRUE(got == sent);
}

TEST(ShmTransport, WaitsEndWithAReason) {
  Pair pair;
  char byte = 0;
  EXPECT_NE(error_of([&] {
              pair.one->recv(0, 1, &byte, 1)->wait(steady_clock::now() + Milliseconds(150));
            }).find("timed out waiting for rank 0"),
            std::string::npos);
  const std::uint16_t two = 0;
  const auto send = pair.zero->send(1, 2, &two, 2);
  EXPECT_NE(error_of([&] { pair.one->recv(0, 2, &byte, 1)->wait(in_seconds(10)); }).find("another size"),
            std::string::npos);
  std::thread abort([&] {
    std::this_thread::sleep_for(Milliseconds(100));
    pair.zero->abort();
  });
  EXPECT_NE(error_of([&] { pair.one->recv(0, 3, &byte, 1)->wait(in_seconds(60)); }).find("has closed the connection"),
            std::string::npos);
  abort.join();
  EXPECT_NE(error_of([&] { pair.zero->recv(1, 3, &byte, 1); }).find("the group was aborted"), std::string::npos);
}

TEST(ShmTransport, AProcessThatHasEndedIsNoticedBeforeTheDeadline) {
  Segment segment = Segment::create(2);
  const pid_t child = fork();
  if (child == 0) _exit(0);  // and is not waited for yet
  segment.rank(0).pid = getpid();
  segment.rank(1).pid = child;
  ShmTransport transport(std::move(segment), 0, 2);
  char byte = 0;
  const auto start = steady_clock::now();
  EXPECT_NE(
      error_of([&] { transport.recv(1, 1, &byte, 1)->wait(in_seconds(60)); }).find("the process of rank 1 has ended"),
      std::string::npos);
  EXPECT_LT(steady_clock::now() - start, std::chrono::seconds(20));
  waitpid(child, nullptr, 0);
}

TEST(Segment, ALimitOnTheSizeOfFilesIsAnErrorAndNoSignal) {
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([] { Segment::create(2); });
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_NE(error.find("cannot make a segment of"), std::string::npos) << error;
  EXPECT_NE(error.find("File too large"), std::string::npos) << error;
}

TEST(Segment, OpensNothingElse) {
  const Segment segment = Segment::create(2);
  const std::string ticket = segment.ticket();
  const std::string other_word = ticket.substr(0, ticket.size() - 1) + (ticket.back() == '0' ? '1' : '0');
  EXPECT_NE(error_of([&] { Segment::open(other_word, 2); }).find("another group"), std::string::npos);
  EXPECT_NE(error_of([&] { Segment::open(ticket, 3); }).find("not a segment for 3 ranks"), std::string::npos);
  EXPECT_NE(error_of([&] { Segment::open("elsewhere" + ticket, 2); }).find("on another machine"), std::string::npos);
  EXPECT_NE(error_of([&] { Segment::open("x 1", 2); }).find("not a ticket"), std::string::npos);
}

TEST(Shm, TooManyRanksAreAnObstacle) {
  const auto store = std::make_shared<HashStore>();
  const ProcessGroupOptions group{.rank = 3, .world_size = Segment::kMaxRanks + 1};
  const Attempt attempt = try_process_group(store, group);
  EXPECT_EQ(attempt.group, nullptr);
  EXPECT_NE(attempt.obstacle.find("at most 64"), std::string::npos) << attempt.obstacle;
  EXPECT_NE(error_of([&] { make_process_group(store, group); }).find("use the gloo backend"), std::string::npos);
}

TEST(Shm, OneRanksObstacleIsEverybodys) {
  // Rank 0's segment is said to be elsewhere.
  const auto store = std::make_shared<HashStore>();
  std::vector<std::string> obstacles(3);
  std::vector<std::thread> ranks;
  store->set("come/0", "1");
  store->set("ticket", "elsewhere 1 1 00000000000000000000000000000000");
  store->set("obstacle/0", "");
  for (int r : {1, 2})
    ranks.emplace_back([&, r] {
      const Attempt attempt = try_process_group(store, {.rank = r, .world_size = 3, .timeout = Milliseconds(10'000)});
      EXPECT_EQ(attempt.group, nullptr);
      obstacles[static_cast<std::size_t>(r)] = attempt.obstacle;
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_NE(obstacles[1].find("rank 1: [shm] rank 0 is on another machine"), std::string::npos) << obstacles[1];
  EXPECT_EQ(obstacles[1], obstacles[2]);
}

}  // namespace
}  // namespace lockstep::distributed::shm
