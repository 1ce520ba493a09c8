// spawn(): the ranks are copies of this very process, so what they find is written to memory that they share with it.

#include "lockstep/distributed/launcher/spawn.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>

#include "lockstep/core/factories.h"
#include "lockstep/core/profile.h"
#include "lockstep/core/thread_pool.h"
#include "lockstep/distributed/job/job.h"
#include "tests/distributed/launcher_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep {
namespace {

using launcher::spawn;
using launcher::SpawnError;
using launcher_test::wait_until_gone;
using Clock = std::chrono::steady_clock;
constexpr int kMaxRanks = 8;

struct Board {
  std::array<std::atomic<int>, kMaxRanks> pid, value;
  std::array<std::atomic<double>, kMaxRanks> number;
  std::atomic<int> ready;
};

class Spawn : public ::testing::Test {
 protected:
  void SetUp() override {
    void* memory = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    board_ = new (memory) Board{};
  }
  void TearDown() override { munmap(board_, sizeof(Board)); }

  /// In a rank: says that it is there, and stays until it is ended.
  [[noreturn]] static void stay(Board* board, int rank) {
    board->pid[static_cast<std::size_t>(rank)] = getpid();
    ++board->ready;
    for (;;) pause();
  }
  static void wait_for(const Board* board, int ranks) {
    const auto deadline = Clock::now() + std::chrono::seconds(20);
    while (board->ready < ranks && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }

  Board* board_ = nullptr;
};

int variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : -1;
}

/// What spawn says when `function` fails on some rank.
SpawnError failure_of(const std::function<void(int)>& function, int nprocs, launcher::SpawnOptions options = {}) {
  try {
    spawn(function, nprocs, options);
  } catch (const SpawnError& error) {
    return error;
  }
  ADD_FAILURE() << "nothing failed";
  return SpawnError("", -1, 0, 0);
}

std::vector<int> descriptors() {
  std::vector<int> found;
  DIR* folder = opendir("/proc/self/fd");
  while (const dirent* entry = readdir(folder))
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != dirfd(folder)) found.push_back(std::atoi(entry->d_name));
  closedir(folder);
  return found;
}

TEST_F(Spawn, GivesEachRankItsPlace) {
  const std::vector<int> before = descriptors();
  spawn(
      [&](int rank) {
        const auto r = static_cast<std::size_t>(rank);
        board_->pid[r] = getpid();
        const bool right = variable("RANK") == rank && variable("LOCAL_RANK") == rank && variable("WORLD_SIZE") == 3 &&
                           variable("LOCAL_WORLD_SIZE") == 3 && variable("MASTER_PORT") > 0;
        board_->value[r] = right ? 100 + rank : -1;
      },
      3);
  for (int rank = 0; rank < 3; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_EQ(board_->value[r], 100 + rank);
    EXPECT_NE(board_->pid[r], getpid());
  }
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(std::getenv("RANK"), nullptr) << "the caller's own environment has changed";
}

TEST_F(Spawn, RanksMayJoinAgain) {
  for (const char* backend : {"shm", "gloo"}) {
    if (backend == std::string("gloo") && !std::ranges::count(distributed::available_backends(), "gloo")) continue;
    Board* board = board_;
    board->value[0] = 0;
    spawn(
        [&](int) {
          for (int training = 1; training <= 3; ++training) {
            const distributed::Job job =
                distributed::init({.backend = backend, .device = "cpu", .timeout = distributed::Milliseconds(20'000)});
            const Tensor sum = full({2}, training);
            job.process_group()->all_reduce(sum)->wait();
            if (job.is_rank0()) board->value[0] += static_cast<int>(sum.data<float>()[0]);
          }
        },
        2);
    EXPECT_EQ(board->value[0], 2 + 4 + 6) << backend;
  }
}

TEST_F(Spawn, RanksMeetWithWhatTheFunctionCaptured) {
  const Tensor captured = full({1000}, 1.5);
  spawn(
      [&](int rank) {
        const distributed::Job job = distributed::init({.timeout = distributed::Milliseconds(30'000)});
        const Tensor sum = full({1000}, rank + captured.to_vector<double>()[7]);
        job.process_group()->all_reduce(sum)->wait();
        board_->number[static_cast<std::size_t>(rank)] = sum.to_vector<double>()[999];
        board_->value[static_cast<std::size_t>(rank)] = job.world_size();
      },
      3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(board_->number[rank], 0 + 1 + 2 + 3 * 1.5);
    EXPECT_EQ(board_->value[rank], 3);
  }
}

TEST_F(Spawn, TheFirstExceptionIsPassedOnAndTheOthersAreEnded) {
  const auto start = Clock::now();
  const SpawnError error = failure_of(
      [&](int rank) {
        if (rank != 1) stay(board_, rank);
        wait_for(board_, 2);
        throw Error("the disk is on fire");
      },
      3);
  EXPECT_STREQ(error.what(), "[spawn] rank 1 failed first: the disk is on fire");
  EXPECT_EQ(error.rank(), 1);
  EXPECT_EQ(error.exit_status(), 1);
  EXPECT_EQ(error.signal(), 0);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  EXPECT_FALSE(launcher_test::is_running(board_->pid[0]));
  EXPECT_FALSE(launcher_test::is_running(board_->pid[2]));
}

TEST_F(Spawn, OfSeveralExceptionsTheFirstInTimeCounts) {
  const SpawnError error = failure_of(
      [&](int rank) {
        // One after the other, so soon that the parent may find all of them ended at once.
        board_->pid[rank] = getpid();
        while (rank < 3 && (board_->pid[rank + 1] == 0 || launcher_test::is_running(board_->pid[rank + 1])))
          std::this_thread::yield();
        throw Error(rank == 3 ? "the cause" : "a consequence");
      },
      4);
  EXPECT_EQ(error.rank(), 3) << error.what();
}

TEST_F(Spawn, ARankThatThrowsInAJobIsTheFirstHoweverSoonTheOthersEnd) {
  for (int i = 0; i < 10; ++i) {
    const SpawnError error = failure_of(
        [](int rank) {
          const distributed::Job job = distributed::init({.timeout = distributed::Milliseconds(30'000)});
          const Tensor tensor = ones({1000});
          job.process_group()->all_reduce(tensor)->wait();
          if (rank == 1) throw Error("out of eggs");
          job.process_group()->all_reduce(tensor)->wait();
        },
        3);
    EXPECT_STREQ(error.what(), "[spawn] rank 1 failed first: out of eggs");
  }
}

TEST_F(Spawn, OtherEndsAreNamed) {
  const SpawnError killed = failure_of(
      [](int rank) {
        if (rank == 1) raise(SIGKILL);
      },
      2);
  EXPECT_EQ(killed.rank(), 1);
  EXPECT_EQ(killed.signal(), SIGKILL);
  EXPECT_EQ(killed.exit_status(), 128 + SIGKILL);
  EXPECT_STREQ(killed.what(), "[spawn] rank 1 failed first: it was killed by signal 9 (SIGKILL)");

  const SpawnError limited = failure_of([](int) { raise(SIGXFSZ); }, 1);
  EXPECT_NE(std::string(limited.what()).find("SIGXFSZ, a file above the limit"), std::string::npos) << limited.what();

  const SpawnError exited = failure_of([](int) { _exit(7); }, 1);
  EXPECT_EQ(exited.exit_status(), 7);
  EXPECT_STREQ(exited.what(), "[spawn] rank 0 failed first: it exited with status 7");

  const SpawnError odd = failure_of([](int) { throw 3; }, 1);
  EXPECT_STREQ(odd.what(), "[spawn] rank 0 failed first: an exception that is no std::exception");
}

TEST_F(Spawn, WhoIgnoresSigtermIsKilled) {
  const SpawnError error = failure_of(
      [&](int rank) {
        if (rank == 0) {
          signal(SIGTERM, SIG_IGN);
          stay(board_, rank);
        }
        wait_for(board_, 1);
        throw Error("over");
      },
      2, {.kill_after = std::chrono::milliseconds(200)});
  EXPECT_EQ(error.rank(), 1);
  EXPECT_FALSE(launcher_test::is_running(board_->pid[0]));
}

TEST_F(Spawn, CopiesHaveThreadsOfTheirOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer's runtime cannot start threads in the child of a process with threads";
#endif
  const auto threads_used = [] {
    std::atomic<int> inside{0};
    std::atomic<bool> both{false};
    parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
      ++inside;
      const auto deadline = Clock::now() + std::chrono::seconds(10);
      while (inside < 2 && Clock::now() < deadline) std::this_thread::yield();
      if (inside == 2) both = true;
    });
    return both ? 2 : 1;
  };
  set_num_threads(2);
  EXPECT_EQ(threads_used(), 2);
  setenv("LOCKSTEP_NUM_THREADS", "2", 1);
  spawn([&](int rank) { board_->value[static_cast<std::size_t>(rank)] = threads_used(); }, 2);
  unsetenv("LOCKSTEP_NUM_THREADS");
  EXPECT_EQ(board_->value[0], 2);
  EXPECT_EQ(board_->value[1], 2);
}

TEST_F(Spawn, CopiesHoldNoDescriptorOfTheLaunchers) {
  const std::size_t before = descriptors().size();
  spawn([&](int rank) { board_->value[static_cast<std::size_t>(rank)] = static_cast<int>(descriptors().size()); }, 2);
  // stdin, stdout and stderr are there already; one descriptor is for the message of an exception, one for
  // tell_launcher().
  EXPECT_EQ(board_->value[0], static_cast<int>(before) + 2);
  EXPECT_EQ(board_->value[1], static_cast<int>(before) + 2);
}

TEST_F(Spawn, WritesAFileForEachRank) {
  const testing::TempDir place;
  const std::string folder = place.path();
  spawn([](int rank) { std::printf("rank %d was here", rank); }, 2, {.log_dir = folder + "/logs"});
  for (const char* rank : {"0", "1"}) {
    std::ifstream file(folder + "/logs/rank" + rank + ".out");
    std::string text;
    std::getline(file, text);
    EXPECT_EQ(text, std::string("rank ") + rank + " was here");
  }
}

TEST_F(Spawn, EachRankWritesItsOwnProfile) {
  const testing::TempDir place;
  const std::string folder = place.path();
  setenv("LOCKSTEP_PROFILE", (folder + "/trace.json").c_str(), 1);
  spawn([](int rank) { const profile::Scope scope("kernel", rank == 0 ? "of_rank_0" : "of_rank_1"); }, 2);
  unsetenv("LOCKSTEP_PROFILE");
  for (const std::string rank : {"0", "1"}) {
    std::ifstream file(folder + "/trace.rank" + rank + ".json");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    EXPECT_NE(text.find("of_rank_" + rank), std::string::npos) << text;
  }
}

/// A process that spawns two ranks which stay, for signals to be sent to.
class SpawnEnds : public Spawn {
 protected:
  void SetUp() override {
    Spawn::SetUp();
    fflush(nullptr);
    parent_ = fork();
    if (parent_ == 0) {
      signal(SIGINT, SIG_DFL);
      Board* const board = board_;
      spawn([board](int rank) { stay(board, rank); }, 2);
      _exit(0);
    }
    wait_for(board_, 2);
    ASSERT_EQ(board_->ready, 2);
  }
  void TearDown() override {
    for (std::size_t rank = 0; rank < 2; ++rank) EXPECT_TRUE(wait_until_gone(board_->pid[rank], 5)) << "rank " << rank;
    Spawn::TearDown();
  }
  int status_after(int signal) {
    kill(parent_, signal);
    int status = 0;
    EXPECT_EQ(waitpid(parent_, &status, 0), parent_);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
  pid_t parent_ = -1;
};

TEST_F(SpawnEnds, NobodyOutlivesAParentThatIsKilled) {
  EXPECT_EQ(status_after(SIGKILL), 128 + SIGKILL);
}

TEST_F(SpawnEnds, CtrlCEndsAll) {
  const auto start = Clock::now();
  EXPECT_EQ(status_after(SIGINT), 128 + SIGINT);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
}

// Whoever comes first knows how a rank has ended; the other must not wait for ever.
TEST_F(Spawn, EndsThoughTheProgramWaitsForAnyProcess) {
  std::atomic<bool> stop{false};
  std::thread reaper([&] {
    while (!stop)
      if (waitpid(-1, nullptr, 0) < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  for (int i = 0; i < 10; ++i) {
    try {
      spawn([](int) {}, 2);
    } catch (const SpawnError& error) {
      EXPECT_NE(std::string(error.what()).find("another part of this program has waited for it"), std::string::npos)
          << error.what();
    }
  }
  stop = true;
  reaper.join();
}

TEST(SpawnUsage, IsChecked) {
  EXPECT_THROW(spawn([](int) {}, 0), Error);
  EXPECT_THROW(spawn(nullptr, 1), Error);
  EXPECT_THROW(spawn([](int) {}, 1, {.log_dir = "/proc/no/such"}), Error);
}

TEST(SpawnedRanks, GivenDifferentBackendsSaySo) {
  const SpawnError error = failure_of(
      [](int rank) {
        distributed::init(
            {.backend = rank == 0 ? "auto" : "shm", .device = "cpu", .timeout = distributed::Milliseconds(20'000)});
      },
      2);
  const std::string said = error.what();
  EXPECT_NE(said.find("the ranks were given different backends: "), std::string::npos) << said;
}

}  // namespace
}  // namespace lockstep
