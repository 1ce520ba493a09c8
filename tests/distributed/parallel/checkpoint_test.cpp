// What rank 0 reads and writes for all ranks.

#include "lockstep/distributed/parallel/checkpoint.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "lockstep/distributed/parallel/distributed_data_parallel.h"
#include "lockstep/distributed/parallel/held_file.h"
#include "lockstep/distributed/parallel/rank0_file.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/distributed/parallel/training_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {
namespace {

using namespace testing;
using lockstep::testing::error_of;
using lockstep::testing::TemporaryPath;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::unique_ptr<optim::Optimizer> make_adam(std::vector<Tensor> parameters) {
  return std::make_unique<optim::Adam>(std::move(parameters), optim::AdamOptions{.lr = 0.01});
}

std::unique_ptr<optim::Optimizer> make_sharded(const Net& net, const ProcessGroupPtr& group) {
  return std::make_unique<ZeroRedundancyOptimizer>(make_adam(net.parameters()), group, 40);
}

void train(Net& net, const ProcessGroupPtr& group, optim::Optimizer& optimizer, std::int64_t first, std::int64_t last) {
  DistributedDataParallel ddp(net, group, {.logical_shards = 4});
  for (std::int64_t step = first; step < last; ++step) {
    ddp.step(make_batch(9, static_cast<std::uint32_t>(step + 1)),
             [&](const data::Batch& part) { return mean_loss(net, part); });
    optimizer.step();
  }
}

struct Dropping : nn::Module {
  nn::Linear fc1{this, "fc1", kFeatures, 5}, fc2{this, "fc2", 5, kClasses};
  nn::Dropout dropout{this, "dropout", 0.4};
  Tensor forward(Tensor x) override { return fc2(dropout(relu(fc1(x)))); }
};

/// Steps until the `last`, in a loop that numbers nothing itself.
std::string weights_after(const ProcessGroupPtr& group, std::int64_t shards, const std::string& from, std::int64_t last,
                          const std::string& to) {
  Dropping net;
  set_weights(net);
  optim::SGD optimizer(net.parameters(), {.lr = 0.1});
  DistributedDataParallel ddp(net, group, {.logical_shards = shards});
  std::int64_t first = 0;
  if (!from.empty()) first = load_checkpoint(from, net, optimizer, *group).step;
  for (std::int64_t step = first; step < last; ++step) {
    ddp.step(make_batch(9, static_cast<std::uint32_t>(step + 1)),
             [&](const data::Batch& part) { return mean_loss(net, part); });
    optimizer.step();
  }
  if (!to.empty()) save_checkpoint(to, net, optimizer, {.step = last}, *group);
  return nn::weights_sha256(net);
}

TEST(Checkpoint, AResumedLoopGoesOnWithTheMasksOfOneThatNeverStopped) {
  const TemporaryPath path;
  for (const std::int64_t shards : {0, 4})
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      const std::string whole = weights_after(group, shards, "", 6, "");
      if (group->rank() == 0) std::filesystem::remove(path.text());
      group->barrier()->wait();
      weights_after(group, shards, "", 3, path.text());
      EXPECT_EQ(weights_after(group, shards, path.text(), 6, ""), whole) << shards;
    });
}

class CheckpointOver : public ::testing::TestWithParam<World> {};

// Rank 0's path alone exists; the file is the one that a single process writes, and all go on with its bits.
TEST_P(CheckpointOver, Rank0WritesAndAllLoad) {
  const ProcessGroupPtr one = make_single_process_group();
  Net alone;
  set_weights(alone);
  const auto adam = make_adam(alone.parameters());
  train(alone, one, *adam, 0, 3);
  const TemporaryPath expected;
  const nn::TrainingState position{.seed = 3, .step = 3, .logical_shards = 4, .extra = {{"model", "net"}}};
  nn::save_checkpoint(expected.text(), alone, *adam, position);
  train(alone, one, *adam, 3, 5);

  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded);
    const TemporaryPath path;
    run_on(GetParam(), [&](const ProcessGroupPtr& group) {
      const std::string mine = group->rank() == 0 ? path.text() : "/nonexistent/elsewhere";
      Net net;
      set_weights(net);
      const auto optimizer = sharded ? make_sharded(net, group) : make_adam(net.parameters());
      train(net, group, *optimizer, 0, 3);
      save_checkpoint(mine, net, *optimizer, position, *group);
      if (group->rank() == 0) {
        EXPECT_EQ(bytes_of(path.text()), bytes_of(expected.text()));
      }
      Net second;
      const auto resumed = sharded ? make_sharded(second, group) : make_adam(second.parameters());
      const nn::TrainingState state = load_checkpoint(mine, second, *resumed, *group);
      EXPECT_EQ(state.step, 3);
      EXPECT_EQ(state.extra.at("model"), "net");
      EXPECT_EQ(weights_of(second), weights_of(net));
      train(second, group, *resumed, 3, 5);
      EXPECT_EQ(weights_of(second), weights_of(alone));
    });
  }
}

TEST_P(CheckpointOver, AllRanksThrowWhatRank0Could) {
  const TemporaryPath damaged;
  write_bytes(damaged.text(), "this is no safetensors file, but longer than eight bytes");
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    Net net;
    const auto optimizer = make_adam(net.parameters());
    const auto mine = [&](const std::string& path) { return group->rank() == 0 ? path : std::string("elsewhere"); };
    const auto names = [](const std::string& error, const std::string& text) {
      EXPECT_NE(error.find(text), std::string::npos) << error;
    };
    names(error_of([&] { save_checkpoint(mine("/nonexistent/a"), net, *optimizer, {}, *group); }), "/nonexistent/a");
    names(error_of([&] { load_checkpoint(mine("/nonexistent/b"), net, *optimizer, *group); }),
          "[rank 0] cannot open '/nonexistent/b': No such file");
    names(error_of([&] { load_checkpoint(mine("/"), net, *optimizer, *group); }),
          "[rank 0] '/' is a directory; expected a file");
    names(error_of([&] { load_checkpoint(mine(damaged.text()), net, *optimizer, *group); }), damaged.text());
    names(error_of([&] { on_rank0(*group, [] { throw Error("no luck"); }); }), "no luck");
    // The group still works.
    EXPECT_EQ(group->broadcast_object(group->rank() == 0 ? "fine" : "other"), "fine");
  });
}

TEST_P(CheckpointOver, FilesOfAnySizeArrive) {
  const TemporaryPath empty;
  const TemporaryPath large;
  write_bytes(empty.text(), "");
  std::string content((std::size_t{33} << 20) + 5, 'x');  // in several pieces
  for (std::size_t i = 0; i < content.size(); i += 4093) content[i] = static_cast<char>(i);
  write_bytes(large.text(), content);
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    const bool root = group->rank() == 0;
    for (const TemporaryPath* path : {&empty, &large}) {
      const Rank0File file(root ? path->text() : "elsewhere", *group);
      const std::string error = error_of(
          [&] { file.read([](const std::string& here) { throw Error(here + " is damaged, " + here + " says"); }); });
      EXPECT_EQ(error, path->text() + " is damaged, " + path->text() + " says");
      bool called = false;
      file.read([&](const std::string& here) {
        called = true;
        EXPECT_EQ(std::filesystem::file_size(here), path == &empty ? 0 : content.size());
        EXPECT_TRUE(bytes_of(here) == (path == &empty ? "" : content));
      });
      EXPECT_TRUE(called);
    }
  });
}

// What this thread has read from files so far.
std::int64_t bytes_read() {
  std::ifstream counters("/proc/thread-self/io");
  std::string name;
  std::int64_t bytes = 0;
  counters >> name >> bytes;
  return name == "rchar:" ? bytes : -1;
}

// The state of a sharded optimizer, twice the model's size, is read in parts: each rank its own.
TEST_P(CheckpointOver, AShardedOptimizerReadsItsPart) {
  if (bytes_read() < 0) GTEST_SKIP() << "this kernel does not count what threads read";
  const TemporaryPath path;
  run_on(GetParam(), [&](const ProcessGroupPtr& group) {
    nn::Linear net(256, 256);
    ZeroRedundancyOptimizer optimizer(make_adam(net.parameters()), group);
    save_checkpoint(path.text(), net, optimizer, {.seed = 1}, *group);
    group->barrier()->wait();
    const std::int64_t before = bytes_read();
    nn::load_checkpoint(path.text(), net, optimizer);
    const std::int64_t model = (256 * 256 + 256) * 4;
    EXPECT_LE(bytes_read() - before, model + 2 * model / group->world_size() + 16'384);
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, CheckpointOver,
                         ::testing::Combine(::testing::Values(1, 2, 3),
                                            ::testing::Values(Link::in_process, Link::gloo)),
                         world_name);

// A program that catches nothing ends by std::terminate(), which need not call a destructor.
TEST(Checkpoint, ThatOneRankSavesAloneIsNamedWithTheCall) {
  const TemporaryPath path;
  for (const bool goes_on : {false, true}) {
    const auto errors =
        lockstep::testing::errors_of_ranks(2, Link::in_process, Milliseconds(1'500), [&](ProcessGroup& group) {
          Net net;
          optim::Adam adam(net.parameters());
          if (group.rank() == 0) save_checkpoint(path.text(), net, adam, {}, group);
          if (goes_on) group.barrier()->wait();
        });
    EXPECT_NE(errors[0].find("save_checkpoint(), which every rank must call"), std::string::npos) << errors[0];
    EXPECT_NE(errors[0].find(goes_on ? "rank 1 called barrier" : "rank 1 left the group"), std::string::npos)
        << errors[0];
  }
}

TEST(CheckpointByShares, ThatCannotBeWrittenIsNotLeftInPart) {
  constexpr const char* kFolder = "LOCKSTEP_TEST_FOLDER";  // the same in the process that ends, which begins anew
  const TemporaryPath mine;
  if (!std::getenv(kFolder)) ::setenv(kFolder, mine.text().c_str(), 1);
  const std::string folder = std::getenv(kFolder);
  std::filesystem::create_directories(folder);
  const auto end_without_catching = [&] {
    const rlimit small{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &small);
    run_on({2, Link::in_process}, [&](const ProcessGroupPtr& group) {
      std::thread([&] {
        nn::Linear net(256, 256);
        ZeroRedundancyOptimizer optimizer(make_adam(net.parameters()), group);
        try {
          save_checkpoint(folder + "/c", net, optimizer, {.seed = 1}, *group);
        } catch (const Error&) {
          // The ranks are one process here: it is rank 0, which made the file, that is to end it.
          if (group->rank() == 0) throw;
          std::this_thread::sleep_for(std::chrono::minutes(1));
        }
      }).join();
    });
  };
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(end_without_catching(), ::testing::KilledBySignal(SIGABRT), "File too large");
  ::unsetenv(kFolder);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) ADD_FAILURE() << entry.path() << " is left";
}

TEST(Rank0File, IsKeptOnceOnAMachine) {
  const TemporaryPath file;
  write_bytes(file.text(), "some bytes");
  run_on({3, Link::gloo}, [&](const ProcessGroupPtr& group) {
    const Rank0File here(group->rank() == 0 ? file.text() : "elsewhere", *group);
    here.read([&](const std::string& path) {
      EXPECT_EQ(bytes_of(path), "some bytes");
      struct stat status {};
      ASSERT_EQ(::stat(path.c_str(), &status), 0);
      const Tensor inode = tensor({static_cast<std::int64_t>(status.st_ino)});
      const Tensor all = empty({group->world_size()}, options_of(inode));
      group->all_gather(all, inode)->wait();
      for (const std::int64_t each : all.to_vector<std::int64_t>())
        EXPECT_EQ(each, static_cast<std::int64_t>(status.st_ino));
    });
  });
}

// Copies of one machine: process, descriptors, device and inode have the same numbers, but it is another's file.
TEST(Rank0File, ATwinMachineIsNotThisOne) {
  FileDescriptor memory(::memfd_create("file", MFD_CLOEXEC));
  ASSERT_TRUE(write_all(memory.get(), "own", 3));
  const HeldFile own(memory.get(), 1);
  const FileDescriptor there = HeldFile::open(own.numbers(), 1);
  std::array<char, 4> text{};
  EXPECT_EQ(read_all_at(there.get(), text.data(), text.size(), 0), 3);
  EXPECT_STREQ(text.data(), "own");

  EXPECT_FALSE(HeldFile::open(own.numbers(), 0)) << "as another rank with the same random number";
  HeldFile::Numbers twin = own.numbers();
  ++twin.back();
  EXPECT_FALSE(HeldFile::open(twin, 1)) << "as a rank of another job";
  EXPECT_FALSE(HeldFile::open(HeldFile(-1, 1).numbers(), 1)) << "of a rank without a file";
  EXPECT_FALSE(HeldFile::open({}, 0));
}

TEST(OnRank0, MayTakeLongerThanAnOperation) {
  lockstep::testing::run_ranks(
      3, Link::in_process,
      [](ProcessGroup& group) {
        for (const int milliseconds : {0, 2500, 0}) {
          on_rank0(group, [&] { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
          EXPECT_EQ(group.broadcast_object(group.rank() == 0 ? "fine" : ""), "fine");
        }
      },
      std::chrono::milliseconds(1'500));  // of which a busy machine may keep rank 0's word back for a second
}

TEST(OnRank0, ACollectiveInsideIsAnErrorOnAllRanks) {
  run_on({2, Link::in_process}, [](const ProcessGroupPtr& group) {
    const std::string error = error_of([&] { on_rank0(*group, [&] { group->barrier(); }); });
    EXPECT_NE(error.find("barrier"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace lockstep::distributed
