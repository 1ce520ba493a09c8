#include "lockstep/distributed/store/store.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <thread>

#include "lockstep/distributed/store/file_store.h"
#include "lockstep/distributed/store/hash_store.h"
#include "lockstep/distributed/store/prefix_store.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/tcp_store_server.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::TemporaryPath;

/// A shared place, and how one more worker opens it.
struct Place {
  std::function<StorePtr()> open;
};

Place hash_place() {
  auto store = std::make_shared<HashStore>();
  return {[store] { return store; }};
}

Place file_place() {
  auto path = std::make_shared<TemporaryPath>();
  return {[path] { return std::make_shared<FileStore>(path->text(), 0); }};
}

Place tcp_place() {
  auto server = std::make_shared<TCPStoreServer>(TCPStoreServerOptions{.token = "secret"});
  return {[server] { return std::make_shared<TCPStore>(TCPStoreOptions{.port = server->port(), .token = "secret"}); }};
}

struct Kind {
  const char* name;
  Place (*make)();
  bool prefixed;
};

class StoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  StorePtr open() {
    StorePtr store = place_.open();
    return GetParam().prefixed ? std::make_shared<PrefixStore>("prefix", store) : store;
  }
  Place place_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(All, StoreTest,
                         ::testing::Values(Kind{"Hash", hash_place, false}, Kind{"File", file_place, false},
                                           Kind{"Tcp", tcp_place, false}, Kind{"PrefixHash", hash_place, true},
                                           Kind{"PrefixFile", file_place, true}, Kind{"PrefixTcp", tcp_place, true}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(StoreTest, SetGetReplaceAndDelete) {
  const StorePtr a = open(), b = open();
  a->set("key", "value");
  EXPECT_EQ(b->get("key"), "value");
  b->set("key", "other");
  EXPECT_EQ(a->get("key"), "other");
  EXPECT_TRUE(a->delete_key("key"));
  EXPECT_FALSE(b->delete_key("key"));
  EXPECT_FALSE(b->check({"key"}));
}

TEST_P(StoreTest, ValuesAreBytes) {
  const StorePtr a = open(), b = open();
  const std::string bytes("\0\n\xff\1 end\0", 8);
  a->set(bytes, bytes);
  EXPECT_EQ(b->get(bytes), bytes);
  a->set("empty", "");
  EXPECT_EQ(b->get("empty"), "");
  std::string large(Store::kMaxValueBytes, 'x');
  large[12345] = '\0';
  a->set("large", large);
  EXPECT_EQ(b->get("large"), large);
}

TEST_P(StoreTest, AddCountsAcrossThreads) {
  constexpr int kThreads = 4, kRounds = 50;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([this] {
      const StorePtr store = open();
      for (int i = 0; i < kRounds; ++i) store->add("counter", 3);
    });
  for (std::thread& thread : threads) thread.join();
  const StorePtr store = open();
  EXPECT_EQ(store->add("counter", 0), kThreads * kRounds * 3);
  EXPECT_EQ(store->get("counter"), std::to_string(kThreads * kRounds * 3));
  EXPECT_EQ(store->add("counter", -1000), kThreads * kRounds * 3 - 1000);
}

TEST_P(StoreTest, AddRefusesTextAndOverflow) {
  const StorePtr store = open();
  store->set("text", "abc");
  EXPECT_NE(error_of([&] { store->add("text", 1); }).find("is no counter"), std::string::npos);
  store->add("big", INT64_MAX);
  EXPECT_NE(error_of([&] { store->add("big", 1); }).find("overflows"), std::string::npos);
  EXPECT_EQ(store->add("big", 0), INT64_MAX) << "a refused request must leave the store usable";
}

TEST_P(StoreTest, CompareSet) {
  const StorePtr store = open();
  EXPECT_EQ(store->compare_set("key", "wrong", "first"), "");
  EXPECT_FALSE(store->check({"key"}));
  EXPECT_EQ(store->compare_set("key", "", "first"), "first");
  EXPECT_EQ(store->compare_set("key", "", "second"), "first");
  EXPECT_EQ(store->compare_set("key", "first", "second"), "second");
  EXPECT_EQ(store->get("key"), "second");
}

TEST_P(StoreTest, CompareSetHasOneWinner) {
  std::atomic<int> winners = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      const std::string mine = std::to_string(t);
      if (open()->compare_set("leader", "", mine) == mine) ++winners;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
}

TEST_P(StoreTest, GetBlocksUntilTheKeyComes) {
  const StorePtr store = open();
  std::thread setter([this] {
    const StorePtr other = open();
    std::this_thread::sleep_for(Milliseconds(50));
    other->set("late", "here");
  });
  EXPECT_EQ(store->get("late", Milliseconds(20'000)), "here");
  setter.join();
}

TEST_P(StoreTest, WaitNeedsAllKeys) {
  const StorePtr store = open();
  store->set("a", "1");
  std::thread setter([this] {
    const StorePtr other = open();
    std::this_thread::sleep_for(Milliseconds(20));
    other->add("b", 1);
    other->compare_set("c", "", "1");
  });
  store->wait({"a", "b", "c"}, Milliseconds(20'000));
  EXPECT_TRUE(store->check({"a", "b", "c"}));
  setter.join();
  EXPECT_TRUE(store->check({}));
  store->wait({}, Milliseconds(0));
}

TEST_P(StoreTest, WaitsEndAtTheirDeadlineAndTheStoreGoesOn) {
  const StorePtr store = open();
  store->set("there", "1");
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(store->get("never", Milliseconds(100)), TimeoutError);
  EXPECT_THROW(store->wait({"there", "never"}, Milliseconds(100)), TimeoutError);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, Milliseconds(195));
  EXPECT_LT(took, Milliseconds(2'000));
  EXPECT_NE(error_of([&] {
              store->wait({"there", "never"}, Milliseconds(1));
            }).find("never' did not appear within 1 ms"),
            std::string::npos);
  EXPECT_THROW(store->get("never", Milliseconds(0)), TimeoutError);
  EXPECT_EQ(store->get("there", Milliseconds(0)), "1");
}

TEST_P(StoreTest, ABlockedGetHoldsUpNobody) {
  const StorePtr store = open();
  std::thread waiter([&] { EXPECT_EQ(store->get("answer", Milliseconds(20'000)), "42"); });
  std::this_thread::sleep_for(Milliseconds(20));
  store->set("question", "6 x 7");  // the same object, from another thread
  store->set("answer", "42");
  waiter.join();
}

TEST_P(StoreTest, CountsKeys) {
  const StorePtr store = open();
  EXPECT_EQ(store->num_keys(), 0);
  store->set("a", "1");
  store->add("b", 1);
  store->set("a", "2");
  EXPECT_EQ(store->num_keys(), 2);
  store->delete_key("a");
  EXPECT_EQ(store->num_keys(), 1);
}

TEST_P(StoreTest, BadArguments) {
  const StorePtr store = open();
  EXPECT_NE(error_of([&] { store->set("", "x"); }).find("a key has 0 bytes"), std::string::npos);
  EXPECT_NE(error_of([&] { store->get(std::string(5000, 'k')); }).find("a key has 5000 bytes"), std::string::npos);
  EXPECT_NE(error_of([&] { store->set("x", std::string(Store::kMaxValueBytes + 1, 'v')); }).find("at most"),
            std::string::npos);
  EXPECT_NE(error_of([&] { store->set_timeout(Milliseconds(0)); }).find("expected a positive one"), std::string::npos);
}

TEST_P(StoreTest, TwoProcesses) {
  if (GetParam().make == hash_place) {
    // A HashStore lives in one process by definition: there the second worker is a thread.
    const StorePtr store = open();
    std::thread other([&] { store->set("pong", store->get("ping", Milliseconds(20'000)) + "!"); });
    store->set("ping", "hello");
    EXPECT_EQ(store->get("pong", Milliseconds(20'000)), "hello!");
    other.join();
    return;
  }
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int status = 1;
    try {
      const StorePtr store = open();
      store->set("pong", store->get("ping", Milliseconds(20'000)) + "!");
      status = 0;
    } catch (const std::exception&) {
    }
    _exit(status);
  }
  const StorePtr store = open();
  store->set("ping", "hello");
  EXPECT_EQ(store->get("pong", Milliseconds(20'000)), "hello!");
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(PrefixStore, KeepsUsersApart) {
  auto base = std::make_shared<HashStore>();
  PrefixStore a("a", base), b("b", base);
  a.set("key", "1");
  EXPECT_FALSE(b.check({"key"}));
  EXPECT_EQ(base->get("a/key"), "1");
  EXPECT_NE(error_of([] { PrefixStore("p", nullptr); }).find("needs a store"), std::string::npos);
}

// Between open() and its lock, another process may delete the file, as the last one of a job does.
TEST(MakeStore, MakesThoseOfPyTorch) {
  const TemporaryPath path;
  const auto port = static_cast<std::uint16_t>(testing::free_port());
  const TCPStorePlace place{.port = port, .is_master = true, .token = "secret", .timeout = Milliseconds(20'000)};
  const StorePtr held = make_tcp_store(place);
  for (const StorePtr& store : {make_hash_store(), make_file_store(path.text()), held}) {
    EXPECT_EQ(store->add("count", 2), 2);
    const StorePtr apart = make_prefix_store("apart", store);
    EXPECT_FALSE(apart->check({"count"}));
    apart->set("count", "7");
    EXPECT_EQ(apart->compare_set("count", "7", "8"), "8");
    EXPECT_EQ(store->get("apart/count"), "8");
    EXPECT_EQ(store->num_keys(), 2);
    EXPECT_TRUE(apart->delete_key("count"));
    EXPECT_EQ(store->get("count"), "2");
    EXPECT_NE(error_of([&] { store->wait({"none"}, Milliseconds(10)); }).find("none"), std::string::npos);
  }
  EXPECT_EQ(held->timeout(), Milliseconds(20'000));
  TCPStorePlace other = place;
  other.is_master = false;
  EXPECT_EQ(make_tcp_store(other)->get("count"), "2");
  other.token = "guessed";
  EXPECT_NE(error_of([&] { make_tcp_store(other); }).find("token"), std::string::npos);
  EXPECT_NE(error_of([&] { make_tcp_store(place); }).find("in use"), std::string::npos);
  other = {.host = "0.0.0.0", .port = static_cast<std::uint16_t>(port + 1), .is_master = true, .token = ""};
  EXPECT_NE(error_of([&] { make_tcp_store(other); }).find("token"), std::string::npos);
  EXPECT_NE(error_of([] { make_tcp_store({}); }).find("the port is 0"), std::string::npos);
  EXPECT_NE(error_of([] { make_prefix_store("apart", nullptr); }).find("needs a store"), std::string::npos);
  EXPECT_NE(error_of([&] { make_file_store(path.text(), -1); }).find("world_size is -1"), std::string::npos);
}

TEST(FileStore, IsNotMadeInADeletedFile) {
  const TemporaryPath file;
  const FileDescriptor held(open(file.text().c_str(), O_RDWR | O_CREAT, 0600));
  ASSERT_EQ(flock(held.get(), LOCK_EX), 0);
  auto made = std::async(std::launch::async, [&] { return std::make_unique<FileStore>(file.text(), 2); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));  // it waits for the lock
  ASSERT_EQ(unlink(file.text().c_str()), 0);
  ASSERT_EQ(flock(held.get(), LOCK_UN), 0);
  const auto first = made.get();
  FileStore second(file.text(), 2);
  first->set("key", "value");
  EXPECT_EQ(second.get("key"), "value");
}

}  // namespace
}  // namespace lockstep::distributed
