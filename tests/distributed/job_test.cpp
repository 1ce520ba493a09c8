#include "lockstep/distributed/job/job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/cuda/device.h"
#include "lockstep/distributed/gloo/gloo.h"
#include "lockstep/distributed/process_group/meeting.h"
#include "lockstep/distributed/rendezvous/rendezvous.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::TemporaryPath;

constexpr Milliseconds kTimeout{20'000};

TEST(Job, WithoutALauncherIsAlone) {
  for (const char* name : {"RANK", "WORLD_SIZE"}) unsetenv(name);
  // As in a pod of Kubernetes beside a service called "master".
  EXPECT_EQ(read_launcher({{"MASTER_PORT", "tcp://10.0.0.7:80"}}).launcher, "");
  const Job job = init();
  EXPECT_EQ(job.rank(), 0);
  EXPECT_EQ(job.world_size(), 1);
  EXPECT_EQ(job.local_world_size(), 1);
  EXPECT_TRUE(job.is_rank0());
  EXPECT_EQ(job.backend(), "self");
  EXPECT_EQ(job.device(), Device(kCPU));
  job.store()->set("a", "1");
  EXPECT_EQ(job.store()->get("a"), "1");
}

TEST(Job, BadOptions) {
  EXPECT_NE(error_of([] { init({.backend = "smoke"}); }).find("backend 'smoke' is not available in this build"),
            std::string::npos);
  EXPECT_NE(error_of([] { init({.device = "tpu"}); }).find("device 'tpu' is not understood"), std::string::npos);
  EXPECT_NE(error_of([] { init({.backend = "nccl", .device = "cpu"}); }).find("nccl"), std::string::npos);
  if (!cuda::is_available()) {
    const std::string message = error_of([] { init({.device = "cuda"}); });
    EXPECT_NE(message.find(cuda::why_unavailable()), std::string::npos) << message;
  }
  EXPECT_NE(error_of([] { init({.timeout = Milliseconds(0)}); }).find("timeout is 0 ms"), std::string::npos);
}

/// Two ranks of one job, as threads, that check their backend and sum something up.
void meet_through_a_file(const std::string& wish, const std::string& backend) {
  const TemporaryPath path;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Job job = init({.init_method = "file://" + path.text(),
                      .backend = wish,
                      .timeout = kTimeout,
                      .rank = rank,
                      .world_size = 2});
      EXPECT_EQ(job.backend(), backend);
      EXPECT_EQ(job.local_rank(), rank);
      EXPECT_EQ(job.local_world_size(), 2);
      const Tensor tensor = full({3}, rank + 1);
      job.process_group()->all_reduce(tensor)->wait();
      EXPECT_EQ(tensor.to_vector<double>(), std::vector<double>(3, 3.0));
      const Job moved = std::move(job);
      EXPECT_EQ(moved.world_size(), 2);
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Job, RanksOnOneMachineShareMemory) {
  meet_through_a_file("auto", "shm");
  meet_through_a_file("shm", "shm");
}

// Also beside one that was told its place by its launcher, and one that comes last.
TEST(Job, RanksOnSeveralMachinesFindTheirPlacesOnThem) {
  const StorePtr store = make_hash_store();
  const std::vector<std::string> machines{"b", "a", "b", "a", "a"};
  const std::vector<int> ranks{0, 0, 1, 1, 2}, sizes{2, 3, 2, 3, 3};
  std::vector<std::thread> threads;
  for (int rank = 4; rank >= 0; --rank)
    threads.emplace_back([&, rank] {
      const auto at = static_cast<std::size_t>(rank);
      const ProcessGroupOptions group{.rank = rank, .world_size = 5, .timeout = kTimeout};
      const std::optional<LocalPlace> place = find_local_place(*store, group, machines[at], rank != 3);
      ASSERT_EQ(place.has_value(), rank != 3);
      if (!place) return;
      EXPECT_EQ(place->rank, ranks[at]) << rank;
      EXPECT_EQ(place->world_size, sizes[at]) << rank;
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Job, MeetsInAStoreOfTheProgram) {
  const TemporaryPath path;
  const StorePtr shared = make_hash_store();
  const auto port = static_cast<std::uint16_t>(testing::free_port());
  const std::vector<std::function<StorePtr(int rank)>> kinds{
      [&](int) { return shared; }, [&](int) { return make_file_store(path.text(), 2); },
      [&](int rank) {
        return make_tcp_store({.port = port, .is_master = rank == 0, .token = "secret", .timeout = kTimeout});
      }};
  for (const auto& open : kinds) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        const StorePtr store = open(rank);
        const Job job = init({.timeout = kTimeout, .rank = rank, .world_size = 2, .store = store});
        const Tensor tensor = full({3}, rank + 1);
        job.process_group()->all_reduce(tensor)->wait();
        EXPECT_EQ(tensor.to_vector<double>(), std::vector<double>(3, 3.0));
        store->set(rank == 0 ? "first" : "second", "of the program");
        EXPECT_EQ(store->get(rank == 0 ? "second" : "first"), "of the program");
        EXPECT_FALSE(job.store()->check({"first"}));
      });
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_NE(error_of([&] {
              init({.init_method = "file:///a", .rank = 0, .world_size = 2, .store = shared});
            }).find("a store is given and the init_method 'file:///a'"),
            std::string::npos);
  EXPECT_NE(error_of([&] { init({.rank = 0, .store = shared}); }).find("world_size is not known"), std::string::npos);
}

TEST(Job, GlooIsTakenIfAskedFor) {
  if (!gloo::is_available()) GTEST_SKIP() << "this build has no Gloo";
  meet_through_a_file("gloo", "gloo");
}

TEST(Job, AGroupThatOutlivesItsJobKeepsTheStoreThatOthersUse) {
  const std::string url = fmt::format("tcp://127.0.0.1:{}", testing::free_port());
  const auto join = [&](int rank) {
    return init({.init_method = url, .timeout = kTimeout, .rank = rank, .world_size = 2});
  };
  std::promise<void> job_has_gone;
  std::thread other([&] {
    const Job job = join(1);
    job_has_gone.get_future().wait();
    EXPECT_NO_THROW(job.store()->set("key", "value"));
    job.process_group()->barrier()->wait();
  });
  {
    ProcessGroupPtr group = join(0).process_group();  // the Job has gone
    job_has_gone.set_value();
    group->barrier()->wait();
  }
  other.join();
}

TEST(Job, BackendsAreKnown) {
  const std::vector<std::string> backends = available_backends();
  const auto has = [&](const char* name) { return std::count(backends.begin(), backends.end(), name) == 1; };
  EXPECT_TRUE(has("shm"));
  EXPECT_EQ(has("gloo"), gloo::is_available());
}

/// What each of three ranks says, of which the last is given another option, a moment after the others have come or
/// before them. Rank 0 holds the store.
std::vector<std::string> errors_where_one_differs(InitOptions options, const InitOptions& other, bool comes_first) {
  options.init_method = fmt::format("tcp://127.0.0.1:{}", testing::free_port());
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank)
    threads.emplace_back([&, rank] {
      if ((rank == 2) != comes_first) std::this_thread::sleep_for(Milliseconds(200));
      InitOptions own = rank == 2 ? other : options;
      own.init_method = options.init_method;
      own.rank = rank;
      errors[static_cast<std::size_t>(rank)] = error_of([&] { init(own); });
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST(Job, WhyRanksCannotMeetAllOfThemTell) {
  InitOptions options{.device = "cpu", .timeout = kTimeout, .world_size = 3}, other = options;
  other.world_size = 4;
  const auto start = std::chrono::steady_clock::now();
  for (const bool comes_first : {false, true})
    for (const std::string& error : errors_where_one_differs(options, other, comes_first))
      EXPECT_NE(error.find("give all ranks the same WORLD_SIZE"), std::string::npos) << comes_first << error;
  other = options;
  other.backend = "shm";
  for (const bool comes_first : {false, true})
    for (const std::string& error : errors_where_one_differs(options, other, comes_first))
      EXPECT_NE(error.find("the ranks were given different backends: "), std::string::npos) << comes_first << error;
  other.backend = "smoke";
  for (const bool comes_first : {false, true})
    for (const std::string& error : errors_where_one_differs(options, other, comes_first))
      EXPECT_NE(error.find("backend 'smoke' is not available in this build"), std::string::npos)
          << comes_first << error;
  std::swap(options, other);
  for (const std::string& error : errors_where_one_differs(options, other, true))
    EXPECT_NE(error.find("backend 'smoke' is not available in this build"), std::string::npos) << error;
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout) << "nobody waits until the deadline";
}

// What was left of one that failed in a store that outlives it is not taken for a word of the next.
TEST(Job, RanksThatCouldNotMeetMayTryAgainInTheSameStore) {
  const StorePtr store = make_hash_store();
  const std::vector<std::string> wishes{"auto", "shm", "shm"};  // of rank 0; rank 1 always has the last
  for (std::size_t round = 0; round < wishes.size(); ++round) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank)
      threads.emplace_back([&, rank] {
        std::string error;
        try {
          const Job job = init({.backend = rank == 0 ? wishes[round] : wishes.back(),
                                .device = "cpu",
                                .timeout = kTimeout,
                                .rank = rank,
                                .world_size = 2,
                                .store = store});
          const Tensor tensor = full({3}, rank + 1);
          job.process_group()->all_reduce(tensor)->wait();
          EXPECT_EQ(tensor.to_vector<double>(), std::vector<double>(3, 3.0));
        } catch (const Error& caught) {
          error = caught.what();
        }
        EXPECT_EQ(error.find("the ranks were given different backends") != std::string::npos, round == 0) << error;
        EXPECT_EQ(error.empty(), round > 0) << error;
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Job, RanksThatDoNotComeAreNamed) {
  const TemporaryPath path;
  const std::string error = error_of([&] {
    init({.init_method = "file://" + path.text(), .timeout = Milliseconds(200), .rank = 1, .world_size = 3});
  });
  EXPECT_NE(error.find("of 3 ranks, these did not come within 200 ms: 0, 2"), std::string::npos) << error;
}

// By all, wherever they wait, and long before the deadline.
TEST(Job, TwoProcessesWithOneRankAreNamed) {
  for (const bool told : {false, true}) {
    if (told) {  // then nobody waits to learn its place, and the first ones are further on
      setenv("RANK", "0", 1);
      setenv("LOCAL_RANK", "0", 1);
      setenv("LOCAL_WORLD_SIZE", "3", 1);
    }
    const std::string url = fmt::format("tcp://127.0.0.1:{}", testing::free_port());
    std::vector<std::string> errors(3);
    std::vector<std::thread> threads;
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < errors.size(); ++i)
      threads.emplace_back([&, i] {
        if (i == 2) std::this_thread::sleep_for(Milliseconds(300));
        errors[i] = error_of([&] {
          init({.init_method = url, .device = "cpu", .timeout = kTimeout, .rank = i == 0 ? 0 : 1, .world_size = 3});
        });
      });
    for (std::thread& thread : threads) thread.join();
    for (const std::string& error : errors)
      EXPECT_NE(error.find("rank 1 has come 2 times: two processes have the same RANK"), std::string::npos)
          << told << error;
    EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout / 2);
    for (const char* name : {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) unsetenv(name);
  }
}

}  // namespace
}  // namespace lockstep::distributed
