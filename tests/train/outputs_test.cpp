// What a run may write, and what it must not: other trainings' checkpoints, one file for two outputs, names that the
// end could not write.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "lockstep/core/posix.h"
#include "lockstep/nn/checkpoint.h"
#include "lockstep/train/output.h"
#include "lockstep/train/sink.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"
#include "tests/train/training.h"

namespace lockstep::training {
namespace {

namespace fs = std::filesystem;
using testing::error_of;

class Outputs : public ::testing::Test {
 protected:
  Outputs() { fs::create_directories(folder_.text()); }
  std::string file(const std::string& name) const { return folder_.text() + "/" + name; }
  static Result train(const RunOptions& options) { return Training(options).run->train(); }
  void leave_checkpoint(const std::string& name, std::int64_t steps) const {
    train({.epochs = 3, .max_steps = steps, .checkpoint = file(name)});
  }
  static std::int64_t step_of(const std::string& path) { return nn::read_training_state(path).step; }

  testing::TemporaryPath folder_;
};

TEST_F(Outputs, AreRefusedWhereTwoAreOneFile) {
  std::ofstream(file("there")) << "a file";
  fs::create_hard_link(file("there"), file("hard"));
  fs::create_symlink(file("new"), file("link"));
  const std::string again = file("./c");
  for (const RunOptions& options :
       {RunOptions{.checkpoint = file("c"), .save = again}, RunOptions{.save = file("there"), .metrics = file("hard")},
        RunOptions{.metrics = file("e"), .trace_hashes = file("e")},
        RunOptions{.save = file("new"), .profile = file("link")},
        RunOptions{.save = file("w"), .other_outputs = {{"file of --adapters", file("w")}}}})
    EXPECT_NE(error_of([&] { train(options); }).find("are the same file; give each its own"), std::string::npos);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.text()), fs::directory_iterator()), 3) << "something was made";
  ::setenv("LOCKSTEP_PROFILE", file("w").c_str(), 1);
  const std::string error = error_of([&] { train({.save = file("w")}); });
  EXPECT_NE(error.find("profile of LOCKSTEP_PROFILE"), std::string::npos) << error;
  // It is tried under the name that it will have.
  ::setenv("LOCKSTEP_PROFILE", file("p.json").c_str(), 1);
  ::setenv("RANK", "0", 1);
  fs::create_directory(file("p.rank0.json"));
  for (const RunOptions& options : {RunOptions{}, RunOptions{.profile = file("p.json")}}) {
    const std::string folder = error_of([&] { train(options); });
    EXPECT_NE(folder.find("p.rank0.json: Is a directory; nothing has been computed yet"), std::string::npos) << folder;
    ::unsetenv("LOCKSTEP_PROFILE");
  }
  ::unsetenv("RANK");
  train({.metrics = "/dev/null", .trace_hashes = "/dev/null"});
}

TEST_F(Outputs, TakeNoCheckpointsPlace) {
  leave_checkpoint("c", 3);
  for (const RunOptions& options :
       {RunOptions{.save = file("c")}, RunOptions{.metrics = file("c")}, RunOptions{.trace_hashes = file("c")}})
    EXPECT_NE(error_of([&] { train(options); }).find("which is a training checkpoint"), std::string::npos);
  EXPECT_EQ(step_of(file("c")), 3);
  // Folders are tried too: one that can be made, and one that cannot.
  std::ofstream(file("text")) << "no folder";
  train({.other_outputs = {{"folder of --out", file("new/deeper/")}, {"folder of --out", folder_.text() + "/"}}});
  EXPECT_NE(error_of([&] {
              train({.other_outputs = {{"folder of --out", file("text/out/")}}});
            }).find("text is no folder"),
            std::string::npos);
  // So are the files of a folder, whether it is there yet or not.
  const auto into_folder = [&](const std::string& name, RunOptions options) {
    options.other_outputs = {{"folder of --out", file(name + "/")}, {"folder of --out", file(name + "/model")}};
    return error_of([&] { train(options); });
  };
  train({.other_outputs = {{"folder of --out", file("made/")}, {"folder of --out", file("made/model")}}});
  EXPECT_NE(into_folder("made", {.metrics = file("made/model")}).find("are the same file"), std::string::npos);
  EXPECT_NE(into_folder("made", {.checkpoint = file("made/../made/model")}).find("are the same file"),
            std::string::npos);
  fs::create_directories(file("made"));
  leave_checkpoint("made/model", 2);
  EXPECT_NE(into_folder("made", {}).find("which is a training checkpoint"), std::string::npos);
  // Weights may be written again.
  train({.save = file("w")});
  train({.save = file("w")});
}

TEST_F(Outputs, ReplaceNoCheckpointThatTheRunHasNotGoneOnFrom) {
  leave_checkpoint("a", 5);
  leave_checkpoint("b", 2);
  const auto go_on = [&](const std::string& checkpoint) {
    train({.epochs = 3, .checkpoint = file(checkpoint), .resume = file("a")});
  };
  const std::string error = error_of([&] { go_on("b"); });
  EXPECT_NE(error.find("b' of step 2 is of a training that this run has not gone on from"), std::string::npos) << error;
  EXPECT_EQ(step_of(file("b")), 2);
  // An earlier moment of the same run may be replaced, and what the run goes on from itself.
  fs::copy_file(file("a"), file("early"));
  train({.epochs = 2, .checkpoint = file("a"), .resume = "auto"});
  go_on("early");
  EXPECT_EQ(step_of(file("early")), 3 * kStepsAnEpoch);
  go_on("a");
  // That was another run, since it went elsewhere.
  const auto run_of = [&](const char* name) { return nn::read_training_state(file(name)).extra.at("run"); };
  EXPECT_NE(run_of("early"), run_of("a"));
}

TEST_F(Outputs, AWorkerThatIsStartedAgainTakesItsJobsCheckpointAlone) {
  leave_checkpoint("others", 5);
  leave_checkpoint("first", 2);
  const RunOptions options{.epochs = 3, .checkpoint = file("others"), .resume = file("first")};
  ::setenv("LOCKSTEP_JOB_ID", "mine", 1);
  ::setenv("LOCKSTEP_RESTART_COUNT", "1", 1);
  EXPECT_NE(error_of([&] { train(options); }).find("is of step 5, later than step 2"), std::string::npos);
  EXPECT_EQ(train({.epochs = 3, .max_steps = 6, .checkpoint = file("c"), .resume = file("first")}).steps, 4);
  EXPECT_EQ(train({.epochs = 3, .checkpoint = file("c"), .resume = file("first")}).steps, 6);
  ::setenv("LOCKSTEP_JOB_ID", "another", 1);
  EXPECT_NE(error_of([&] { train({.epochs = 3, .checkpoint = file("c"), .resume = file("first")}); }), "");
  ::unsetenv("LOCKSTEP_JOB_ID");
  ::unsetenv("LOCKSTEP_RESTART_COUNT");

  // torchrun's jobs are all called "none" unless somebody names them.
  const auto attempt = [&](const std::string& folder, const char* number) {
    ::setenv("TORCHELASTIC_RUN_ID", "none", 1);
    ::setenv("TORCHELASTIC_RESTART_COUNT", number, 1);
    ::setenv("TORCHELASTIC_ERROR_FILE", (folder + "/attempt_" + number + "/0/error.json").c_str(), 1);
  };
  attempt("/tmp/none_a", "0");
  EXPECT_EQ(train({.epochs = 3, .max_steps = 6, .checkpoint = file("t"), .resume = file("first")}).steps, 4);
  attempt("/tmp/none_b", "1");
  EXPECT_NE(error_of([&] { train({.epochs = 3, .checkpoint = file("t"), .resume = file("first")}); }), "");
  attempt("/tmp/none_a", "1");
  EXPECT_EQ(train({.epochs = 3, .checkpoint = file("t"), .resume = file("first")}).steps, 6);
  for (const char* variable : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_ERROR_FILE"})
    ::unsetenv(variable);
}

TEST_F(Outputs, HaveLongNames) {
  const std::string longest(255, 'x');
  train({.checkpoint = file(longest), .checkpoint_every = 2, .save = file(std::string(250, 'w'))});
  EXPECT_EQ(step_of(file(longest)), kStepsAnEpoch);
  std::string failure;
  const auto write = [&](const std::string& path) {
    if (path == file(longest)) throw Error("the disk is full");
    std::ofstream out(path);
    if (!out) throw Error("cannot be opened");
  };
  EXPECT_TRUE(write_somewhere(file(longest), write, failure).ends_with(".rescued"));
  EXPECT_TRUE(write_somewhere(file(longest), write, failure).ends_with(".rescued2"));
  for (const RunOptions& options : {RunOptions{.save = file(std::string(256, 'x'))},
                                    RunOptions{.checkpoint = file(std::string(250, 'y')), .keep_checkpoints = 2}})
    EXPECT_NE(error_of([&] { train(options); }), "");
}

TEST_F(Outputs, ThatCannotBeWrittenAtTheEndAreAnErrorOfTheirOwn) {
  Training training({.save = file("w")});
  training.run->callbacks().on_epoch_end = [&](std::int64_t) { fs::create_directory(file("w")); };
  EXPECT_THROW(training.run->train(), UnwrittenError);
}

// The other ranks would take one that waits for a terminal for one that hangs.
void expect_no_wait(FileDescriptor out, FileDescriptor in, bool until_the_end) {
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO);
  ::dup2(out.get(), STDOUT_FILENO);
  out.reset();
  constexpr std::int64_t kSteps = 1'000'000;
  std::string read;
  std::thread reader;
  {
    const auto sink = console(false, /*others_wait=*/true);
    RunDescription run;
    run.total_steps = kSteps;
    sink->begin(run);
    for (std::int64_t step = 99; step < kSteps; step += 100) sink->step({.step = step});
    sink->message("a sentence");
    if (!until_the_end) sink->end({});
    reader = std::thread([&] {
      std::array<char, 4096> piece;
      for (ssize_t n = 0; (n = ::read(in.get(), piece.data(), piece.size())) > 0;)
        read.append(piece.data(), static_cast<std::size_t>(n));
    });
    if (until_the_end) sink->end({});
  }
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  reader.join();
  std::erase(read, '\r');  // which a terminal adds
  EXPECT_EQ(read.rfind("step 100/1000000", 0), 0u);
  EXPECT_NE(read.find("step 1000000/1000000"), std::string::npos);
  EXPECT_NE(read.find("a sentence\nresult:"), std::string::npos);
  EXPECT_EQ(std::count(read.begin(), read.end(), '\n'), kSteps / 100 + 2);
}

TEST(Console, DoesNotHoldUpAJobWhoseReaderStandsStill) {
  Pipe pipe = make_pipe();
  expect_no_wait(std::move(pipe.write), std::move(pipe.read), true);
}

// Such as one over a connection that is gone: unlike one that was stopped, it takes what fits, and then no more. What
// the program writes after the run, its model perhaps, must not wait for it either.
TEST(Console, DoesNotHoldUpAJobWhoseTerminalStandsStill) {
  int screen = -1;
  int out = -1;
  if (::openpty(&screen, &out, nullptr, nullptr, nullptr) != 0) GTEST_SKIP() << "no terminal can be made here";
  expect_no_wait(FileDescriptor(out), FileDescriptor(screen), false);
}

/// A disk of two pages. A run's lock takes one of them.
class SmallDisk : public Outputs {
 protected:
  void SetUp() override {
    disk_ = file("disk");
    fs::create_directories(disk_);
    if (::mount("none", disk_.c_str(), "tmpfs", 0, "size=8k") != 0)
      GTEST_SKIP() << "a small file system cannot be mounted here";
    mounted_ = true;
  }
  ~SmallDisk() override {
    if (mounted_) ::umount(disk_.c_str());
  }
  void fill(int pages = 2) const { std::ofstream(disk_ + "/other") << std::string(pages * std::size_t{4096}, 'x'); }
  void give_pages(int pages) const {
    const std::string size = fmt::format("size={}k", 4 * pages);
    ASSERT_EQ(::mount("none", disk_.c_str(), "tmpfs", MS_REMOUNT, size.c_str()), 0);
  }
  /// A checkpoint at each of 12 steps. What the run says comes to `said`; the disk is filled at a step.
  void train_and_fill(std::int64_t keep, std::int64_t at, int pages, std::string& said, const std::string& name) const {
    struct Listener : Sink {
      explicit Listener(std::string& said) : said(said) {}
      void message(const std::string& text) override { said += text + "\n"; }
      std::string& said;
    };
    Training training(
        RunOptions{.epochs = 3, .checkpoint = disk_ + "/" + name, .checkpoint_every = 1, .keep_checkpoints = keep});
    training.run->add_sink(std::make_unique<Listener>(said));
    training.run->callbacks().on_step_begin = [&](std::int64_t step) {
      if (step == at) fill(pages);
    };
    training.run->train();
  }
  std::set<std::string> names() const {
    std::set<std::string> names;
    for (const fs::directory_entry& entry : fs::directory_iterator(disk_)) names.insert(entry.path().filename());
    return names;
  }

  std::string disk_;
  bool mounted_ = false;
};

TEST_F(SmallDisk, IsFoundBeforeTheFirstStep) {
  const auto refuses = [&](const RunOptions& options, const std::string& file) {
    const std::string error = error_of([&] { train(options); });
    for (const std::string& part : {"cannot write " + file + ": No space left on device", std::string("free some"),
                                    std::string("nothing has been computed yet")})
      EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  train({.save = disk_ + "/w"});
  fs::remove(disk_ + "/w");
  // Each of them would fit, and two.
  refuses({.checkpoint = disk_ + "/c", .save = disk_ + "/w", .metrics = disk_ + "/m"}, disk_ + "/m");
  fill();
  refuses({.checkpoint = disk_ + "/c"}, disk_ + "/c");
  refuses({.metrics = disk_ + "/m"}, disk_ + "/m");
  refuses({.other_outputs = {{"folder of --out", disk_ + "/o/"}}, .other_bytes = {{disk_ + "/o", 100}}},
          disk_ + "/new file");
  refuses({.other_outputs = {{"file of --adapters", disk_ + "/a"}}, .other_bytes = {{disk_ + "/a", 100}}},
          disk_ + "/a");
}

// Those that are kept, and the next, which is written before the oldest goes.
TEST_F(SmallDisk, HasRoomForAllCheckpointsThatAreThereAtATime) {
  give_pages(4);
  const auto with = [&](std::int64_t keep) {
    return RunOptions{.epochs = 3, .checkpoint = disk_ + "/c", .checkpoint_every = 1, .keep_checkpoints = keep};
  };
  const std::string error = error_of([&] { train(with(4)); });
  for (const char* part : {"cannot write ", "/c: No space left on device", "5 files of that size", "keep fewer",
                           "nothing has been computed yet"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
  train({.epochs = 1, .checkpoint = disk_ + "/c", .keep_checkpoints = 4});  // only one is written
  fs::remove(disk_ + "/c.step00000004");
  fs::remove(disk_ + "/c");
  train(with(2));
  EXPECT_EQ(names(), (std::set<std::string>{"c", "c.step00000011", "c.step00000012"}));
  // Those that are there need no more room, but the next does.
  RunOptions more = with(2);
  more.epochs = 4;
  more.resume = "auto";
  fill(2);
  EXPECT_NE(error_of([&] { train(more); }).find("No space left on device"), std::string::npos);
  fill(0);
  train(more);
  // One alone is replaced by a second.
  for (const std::string& name : names()) fs::remove(disk_ + "/" + name);
  fill(3);
  EXPECT_NE(error_of([&] { train(with(1)); }).find("2 files of that size"), std::string::npos);
}

// A newer checkpoint is worth more than an older one.
TEST_F(SmallDisk, ThatFillsUpKeepsTheNewestCheckpoints) {
  give_pages(5);
  std::string said;
  train_and_fill(3, 2, 2, said, "c");
  EXPECT_EQ(names(), (std::set<std::string>{"c", "c.step00000011", "c.step00000012", "other"})) << said;
  EXPECT_EQ(step_of(disk_ + "/c"), 12);
  EXPECT_NE(said.find("at step 3: the disk has no room for 3 checkpoints and the next; '" + disk_ +
                      "/c.step00000001' was deleted"),
            std::string::npos)
      << said;

  // The only one never goes, though nothing newer can be written.
  for (const std::string& name : names()) fs::remove(disk_ + "/" + name);
  const std::string rescued = "checkpoint_of_a_small_disk.rescued";  // in the working folder
  fs::remove(rescued);
  said.clear();
  const std::string error = error_of([&] { train_and_fill(3, 1, 3, said, "checkpoint_of_a_small_disk"); });
  EXPECT_NE(error.find("the checkpoint is in '" + rescued + "'"), std::string::npos) << error;
  EXPECT_NE(said.find("; the training goes on"), std::string::npos) << said;
  for (const char* name : {"/checkpoint_of_a_small_disk", "/checkpoint_of_a_small_disk.step00000001"})
    EXPECT_EQ(step_of(disk_ + name), 1);
  EXPECT_EQ(step_of(rescued), 12);
  fs::remove(rescued);
}

TEST_F(SmallDisk, ThatIsFullAtTheEndLosesNothing) {
  const std::string rescued = "weights_of_a_small_disk.rescued";  // in the working folder
  fs::remove(rescued);
  Training training({.save = disk_ + "/weights_of_a_small_disk"});
  training.run->callbacks().on_epoch_end = [&](std::int64_t) { fill(); };
  const std::string error = error_of([&] { training.run->train(); });
  EXPECT_NE(error.find("disk: No space left on device; it takes 0.7 kB, and 0.0 kB are free there; free some space, or "
                       "name another place; the file of the weights is in '" +
                       rescued + "'"),
            std::string::npos)
      << error;
  EXPECT_EQ(nn::load(training.step->module(), rescued).missing.size(), 0u);
  fs::remove(rescued);
}

}  // namespace
}  // namespace lockstep::training
