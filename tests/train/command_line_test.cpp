// What every program on the run takes from its command line.

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/core/copy.h"
#include "lockstep/core/factories.h"
#include "lockstep/distributed/launcher/spawn.h"
#include "lockstep/distributed/parallel/reduction/power_sgd.h"
#include "lockstep/train/command_line/main.h"
#include "lockstep/train/command_line/parse.h"
#include "lockstep/train/program.h"

namespace lockstep::training {
namespace {

using Arguments = std::vector<const char*>;

TEST(Parse, UnderscoresInNamesAreDashesAndValuesStay) {
  CLI::App app;
  std::string a, b;
  bool flag = false;
  std::vector<std::string> rest;
  app.add_option("--first-value", a);
  app.add_option("--second-value", b);
  app.add_flag("--some-flag", flag);
  app.add_option("REST", rest);
  const Arguments argv{"program", "--first_value=a_b", "--second_value", "--c_d", "--some_flag", "x_y", "--", "--e_f"};
  ASSERT_TRUE(command_line::parse(app, static_cast<int>(argv.size()), argv.data()));
  EXPECT_EQ(a, "a_b");
  EXPECT_EQ(b, "--c_d");
  EXPECT_TRUE(flag);
  EXPECT_EQ(rest, (std::vector<std::string>{"x_y", "--e_f"}));
}

TEST(Parse, AFlagThatStandsForANumberTakesTheNextWordIfThatIsOne) {
  const auto parsed = [](Arguments words) {
    CLI::App app;
    int level = 0;
    bool plain = false;
    std::vector<std::string> rest;
    app.add_flag("--some-level{1}", level)->check(CLI::IsMember({1, 2, 3}));
    app.add_flag("--plain", plain);
    app.add_option("REST", rest);
    words.insert(words.begin(), "program");
    command_line::parse(app, static_cast<int>(words.size()), words.data());
    return fmt::format("{} {} {}", level, plain, fmt::join(rest, ","));
  };
  EXPECT_EQ(parsed({"--some_level", "3", "--plain"}), "3 true ");
  EXPECT_EQ(parsed({"--some-level=2", "3"}), "2 false 3");
  EXPECT_EQ(parsed({"--some-level", "--plain", "3"}), "1 true 3");
  EXPECT_EQ(parsed({"--some-level", "x"}), "1 false x");
  EXPECT_EQ(parsed({"--plain", "--some-level"}), "1 true ");
  EXPECT_THROW(parsed({"--some-level", "4"}), command_line::UsageError);
}

TEST(Parse, AProgramBeginsWithTheFirstWordThatIsNoOption) {
  for (const Arguments& argv : {Arguments{"run", "--n_workers", "2", "program", "--n_workers", "--"},
                                Arguments{"run", "--n-workers=2", "--", "program", "--n_workers", "--"}}) {
    CLI::App app;
    int workers = 0;
    app.add_option("--n-workers", workers);
    std::vector<std::string> program;
    ASSERT_TRUE(command_line::parse(app, static_cast<int>(argv.size()), argv.data(), &program));
    EXPECT_EQ(workers, 2);
    EXPECT_EQ(program, (std::vector<std::string>{"program", "--n_workers", "--"}));
  }
}

// CLI11 alone takes -1 for 2^64 - 1, what is too large for the largest number there is, "010" for 8, and nan for a
// number within any bounds.
TEST(Parse, NumbersAreTakenOnlyIfTheyCanBeWhatIsWritten) {
  const auto refusal_of = [](CLI::Validator check, std::string text) { return check(text); };
  using command_line::number;
  for (const char* text : {"-1", "18446744073709551616", "1x", "", " 1", "1.5", "0x1"})
    EXPECT_NE(refusal_of(number<std::uint64_t>(), text), "") << text;
  EXPECT_EQ(refusal_of(number<std::uint64_t>(), "18446744073709551615"), "");
  EXPECT_EQ(refusal_of(number<std::int64_t>(), "-9223372036854775808"), "");
  EXPECT_EQ(refusal_of(number<std::int64_t>(), "9223372036854775808"),
            "'9223372036854775808' is no whole number, or too large");
  EXPECT_EQ(refusal_of(number(1, 8), "9"), "9 is out of range; expected 1 to 8");
  EXPECT_EQ(refusal_of(number(1), "0"), "0 is out of range; expected 1 or more");
  EXPECT_EQ(refusal_of(number(0.0), "1e-3"), "");
  for (const char* text : {"nan", "inf", "1e999", "one"})
    EXPECT_EQ(refusal_of(number<double>(), text), fmt::format("'{}' is no finite number", text));
}

TEST(Parse, ListsHaveNoEmptyItems) {
  for (const char* text : {"0,,1", ",0", "0,", ","})
    for (const Arguments& argv : {Arguments{"program", "--some_list", text}}) {
      CLI::App app;
      std::vector<int> list;
      app.add_option("--some-list", list)->delimiter(',');
      EXPECT_THROW(command_line::parse(app, static_cast<int>(argv.size()), argv.data()), command_line::UsageError)
          << text;
    }
}

struct Outcome {
  int status;
  int calls = 0;
  double lr = 0.5;
  WorkerOptions workers = {};
  RunOptions run = {};
};

Outcome run(
    Arguments argv, const std::function<int()>& body = [] { return 0; }) {
  Outcome outcome{};
  Program program("test", "A test.");
  program.add_option("--lr", outcome.lr, "Learning rate", 0.0);
  program.run().epochs = 7;
  argv.insert(argv.begin(), "test");
  outcome.status =
      program.main(static_cast<int>(argv.size()), argv.data(), [&](Workers& workers, const RunOptions& options) {
        ++outcome.calls;
        outcome.workers = workers.options();
        outcome.run = options;
        return body();
      });
  return outcome;
}

TEST(Program, FillsTheOptions) {
  const Outcome plain = run({});
  EXPECT_EQ(plain.status, 0);
  EXPECT_EQ(plain.calls, 1);
  EXPECT_EQ(plain.run.epochs, 7) << "the program's own default";
  EXPECT_EQ(plain.workers.mode, Mode::single);
  const Outcome full = run({"--lr=0.25", "--batch_size", "32", "--lockstep", "4", "--amp", "bf16", "--devices", "0,1",
                            "--checkpoint", "c", "--checkpoint_minutes", "1.5", "--no_progress", "--local_rank=3"});
  EXPECT_EQ(full.status, 0);
  EXPECT_EQ(full.lr, 0.25);
  EXPECT_EQ(full.workers.mode, Mode::dp);
  EXPECT_EQ(full.workers.devices.size(), 2u);
  EXPECT_EQ(full.workers.batch_size, 32);
  EXPECT_EQ(full.run.logical_shards, 4);
  EXPECT_EQ(full.run.amp, kBFloat16);
  EXPECT_EQ(full.run.checkpoint_minutes, 1.5);
  EXPECT_EQ(full.run.progress, Progress::lines);
  EXPECT_EQ(full.run.workers, 2);
}

TEST(Program, HelpSaysDefaultsAndNamesFlagsAlone) {
  ::testing::internal::CaptureStdout();
  const Outcome outcome = run({"--help"});
  const std::string help = ::testing::internal::GetCapturedStdout();
  EXPECT_EQ(outcome.status, 0);
  for (const char* text :
       {"--epochs INT:1 or more=7 ", "--batch-size INT:1 or more=64\n", "--seed UINT:0 or more=1 ", "86400=300\n",
        "--accumulate INT=1 ", "nccl}=auto\n", "  --zero  ", "  --no-graph  ", "--zero 2: "})
    EXPECT_NE(help.find(text), std::string::npos) << text << " is missing in\n" << help;
}

TEST(Program, EndsWithTheStatusOfWhatHappened) {
  EXPECT_EQ(run({}, [] { return 143; }).status, 143);
  EXPECT_EQ(run({}, []() -> int { throw std::runtime_error("no"); }).status, 1);
  EXPECT_EQ(run({}, []() -> int { throw command_line::UsageError("no"); }).status, 2);
  for (const Arguments& wrong :
       {Arguments{"--lr", "-1"}, Arguments{"--lr", "x"}, Arguments{"--resume", "auto"}, Arguments{"--nonsense"},
        Arguments{"--rank", "0"}, Arguments{"--zero"}, Arguments{"--lockstep", "3"}, Arguments{"--checkpoint", ""},
        Arguments{"--metrics="}}) {
    const Outcome outcome = run(wrong);
    EXPECT_EQ(outcome.status, 2) << wrong.front();
    EXPECT_EQ(outcome.calls, 0) << wrong.front();
  }
}

// What PowerSGD left out of one step's gradient enters the next one's in that one's scale.
TEST(Program, FailsIfItsStdoutCouldNotBeWritten) {
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO);
  const int full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  ::dup2(full, STDOUT_FILENO);
  Program program("test", "A test.");
  const char* const argv[] = {"test", "--mode", "single", "--device", "cpu"};
  const int status = program.main(5, argv, [](Workers&, const RunOptions&) {
    std::printf("result: 1\n");
    return 0;
  });
  std::clearerr(stdout);
  const int of_small_program = command_line::run_main("small", [] {
    std::printf("a result\n");
    return 0;
  });
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  ::close(full);
  std::clearerr(stdout);
  EXPECT_EQ(status, 73);
  EXPECT_EQ(of_small_program, 1);
}

TEST(Main, WhateverIsThrownIsALine) {
  const auto said = [](const std::function<int()>& body) {
    ::testing::internal::CaptureStderr();
    EXPECT_EQ(command_line::run_main("small", body), 1);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(said([]() -> int { throw 42; }).find("no std::exception"), std::string::npos);
  EXPECT_NE(said([]() -> int { throw std::runtime_error(""); }).find("without a message: "), std::string::npos);
}

TEST(Program, PowerSgdFollowsTheLossScaleOfFloat16) {
  const Outcome made = run({"--mode", "ddp", "--device", "cpu", "--amp", "fp16", "--compress", "powersgd"});
  ASSERT_TRUE(made.run.scaler && made.workers.hook);
  const auto alone = distributed::make_single_process_group();
  const auto after_a_matrix = [&](distributed::CommunicationHook& hook, double scale_factor) {
    const Tensor flat = zeros({64});
    const distributed::GradientBucket bucket{
        .index = 0, .count = 1, .flat = flat, .gradients = {{"weight", flat.view({8, 8})}}};
    for (int step = 0; step < 100; ++step) hook.reduce(bucket, *alone)->wait();  // the uncompressed ones
    for (int i = 0; i < 8; ++i) flat.data<float>()[9 * i] = static_cast<float>(i + 1);
    hook.reduce(bucket, *alone)->wait();
    fill_values(flat, 0.0);
    made.run.scaler->load_state({.scale = made.run.scaler->scale_factor() * scale_factor, .good_steps = 0});
    hook.reduce(bucket, *alone)->wait();
    return flat.to_vector<double>();
  };
  const std::vector<double> same = after_a_matrix(*distributed::power_sgd(), 1.0);
  const std::vector<double> quarter = after_a_matrix(*made.workers.hook, 0.25);
  double largest = 0.0;
  for (std::size_t i = 0; i < same.size(); ++i) {
    EXPECT_NEAR(quarter[i], same[i] / 4.0, 1e-6);
    largest = std::max(largest, std::abs(same[i]));
  }
  EXPECT_GT(largest, 1e-3);
}

// Also where it is another rank's than rank 0's, which has nothing to tell of it.
TEST(Program, ARankThatCouldNotWriteItsOwnSaysSoAndFails) {
  const auto rank = [](int) {
    Program program("own", "a program whose ranks write files of their own");
    const Arguments argv{"own", "--device", "cpu"};
    const int status =
        program.main(static_cast<int>(argv.size()), argv.data(), [](Workers& workers, const RunOptions&) {
          if (workers.rank() == 1) throw UnwrittenError("cannot write my own thing");
          return 0;
        });
    if (status != 0) ::_exit(status);
  };
  ::testing::internal::CaptureStderr();
  std::string error;
  try {
    launcher::spawn(rank, 2);
  } catch (const launcher::SpawnError& failed) {
    error = failed.what();
  }
  const std::string told = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
  EXPECT_NE(error.find("status 73"), std::string::npos) << error;
  EXPECT_NE((error + told).find("own: cannot write my own thing"), std::string::npos) << error << told;
}

}  // namespace
}  // namespace lockstep::training
