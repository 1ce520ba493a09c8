// What a training leaves when somebody ends it: a signal that comes twice, lines of files that were being written.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/posix.h"
#include "lockstep/train/sink.h"
#include "lockstep/train/stop_signal.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"
#include "tests/train/training.h"

namespace lockstep::training {
namespace {

// As by a batch system that signals every process of a job, and by the launcher, which passes on what it has got.
TEST(StopSignal, FromTwoSidesIsOneRequest) {
  const StopSignal signal(true);
  EXPECT_FALSE(signal.came());
  std::raise(SIGTERM);
  std::raise(SIGTERM);
  EXPECT_TRUE(signal.came());
}

TEST(StopSignal, ALaterOneEndsTheProcess) {
  const auto twice = [] {
    const StopSignal signal(true);
    std::raise(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(2100));
    std::raise(SIGTERM);
  };
  EXPECT_EXIT(twice(), ::testing::KilledBySignal(SIGTERM), "");
}

// As in `run | head -1`: the rest of a long training is not lost without a word. Another pipe of the program, a
// callback's say, is its own matter.
TEST(StopSignal, AReaderOfStdoutThatIsGoneEndsATrainingLikeSigterm) {
  const auto handler = std::signal(SIGPIPE, SIG_DFL);
  const testing::TemporaryPath checkpoint;
  const auto train = [&](int out) {
    const FileDescriptor before(::dup(STDOUT_FILENO));
    ::dup2(out, STDOUT_FILENO);
    Training training({.epochs = 3, .checkpoint = checkpoint.text()});
    training.run->callbacks().on_step_begin = [](std::int64_t) { std::raise(SIGPIPE); };
    const int status = training.run->train().exit_status();
    ::dup2(before.get(), STDOUT_FILENO);
    EXPECT_EQ(std::signal(SIGPIPE, SIG_DFL), SIG_DFL);
    const std::int64_t step = nn::read_training_state(checkpoint.text()).step;
    std::filesystem::remove(checkpoint.text());
    return std::make_pair(status, step);
  };
  const FileDescriptor file(::open("/dev/null", O_WRONLY));
  Pipe pipe = make_pipe();
  EXPECT_EQ(train(file.get()), std::make_pair(0, 3 * kStepsAnEpoch));
  EXPECT_EQ(train(pipe.write.get()), std::make_pair(0, 3 * kStepsAnEpoch));
  pipe.read.reset();
  EXPECT_EQ(train(pipe.write.get()), std::make_pair(128 + SIGPIPE, std::int64_t{1}));
  std::signal(SIGPIPE, handler);
}

class Metrics : public ::testing::Test {
 protected:
  std::string path() const { return place_.text(); }
  /// The steps in the file; -1 for a line that is no JSON.
  std::vector<int> steps() const {
    std::vector<int> found;
    std::ifstream file(path());
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line, nullptr, false);
      found.push_back(json.is_discarded() ? -1 : json.at("step").get<int>());
    }
    return found;
  }

 private:
  testing::TemporaryPath place_;
};

StepReport report(std::int64_t step) {
  return {.step = step, .epoch = 0, .loss = 0.5, .learning_rate = 0.1, .samples = 8};
}

TEST_F(Metrics, EveryStepButTheLastIsInTheFileAtOnce) {
  const auto sink = json_lines(path());
  sink->begin({.total_steps = 4, .unit = "samples"});
  for (int step = 0; step < 4; ++step) sink->step(report(step));
  EXPECT_EQ(steps(), (std::vector<int>{0, 1, 2}));
  sink->end({});
  EXPECT_EQ(steps(), (std::vector<int>{0, 1, 2, 3}));
}

TEST_F(Metrics, WhatACheckpointHasIsInTheFileBefore) {
  const auto sink = json_lines(path());
  sink->begin({.total_steps = 4, .unit = "samples"});
  for (int step = 0; step < 2; ++step) sink->step(report(step));
  sink->checkpoint();
  EXPECT_EQ(steps(), (std::vector<int>{0, 1}));
  sink->step(report(2));
  sink->evaluation(2, 0, {{"test loss", 1.0}});
  sink->checkpoint();
  EXPECT_EQ(steps(), (std::vector<int>{0, 1, 2}));
}

TEST_F(Metrics, AResumedRunGoesOnBehindTheLastWholeLine) {
  for (const std::string& rest : {std::string("{\"step\":1,\"lo"), std::string(10'000, 'x'), std::string()}) {
    std::ofstream(path()) << "{\"step\":0}\n" << rest;
    const auto sink = json_lines(path());
    sink->begin({.total_steps = 3, .first_step = 1, .unit = "samples"});
    sink->step(report(1));
    sink->end({});
    EXPECT_EQ(steps(), (std::vector<int>{0, 1})) << rest.size();
  }
}

TEST_F(Metrics, AFileThatLosesItsNameIsToldOf) {
  for (const bool renamed : {false, true}) {
    const std::string other = path() + ".other";
    const auto sink = json_lines(path());
    sink->begin({.total_steps = 3, .unit = "samples"});
    sink->step(report(0));
    sink->step(report(1));
    renamed ? std::filesystem::rename(path(), other) : static_cast<void>(std::filesystem::remove(path()));
    std::ofstream(path()) << "{\"step\":7}\n";
    sink->step(report(2));
    const std::string error = testing::error_of([&] { sink->end({}); });
    EXPECT_NE(error.find("was removed or renamed while it was written"), std::string::npos) << error;
    EXPECT_EQ(steps(), (std::vector<int>{7}));
    std::filesystem::remove(other);
  }
}

TEST_F(Metrics, ALineForWhichThereIsNoRoomIsLeftOutAndTold) {
  const auto sink = json_lines(path());
  sink->begin({.total_steps = 100, .unit = "samples"});
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{1000, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  for (int step = 0; step < 100; ++step) sink->step(report(step));
  const std::string error = testing::error_of([&] { sink->end({}); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_NE(error.find("could not be written, and lacks lines: File too large"), std::string::npos) << error;
  const std::vector<int> found = steps();
  ASSERT_GT(found.size(), 2u);
  for (std::size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i], static_cast<int>(i));
}

}  // namespace
}  // namespace lockstep::training
