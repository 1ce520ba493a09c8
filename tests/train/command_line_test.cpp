// What every program on the run takes from its command line.

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/train/command_line/main.h"
#include "lockstep/train/command_line/parse.h"
#include "lockstep/train/program.h"

namespace lockstep::train {
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

TEST(Program, EndsWithTheStatusOfWhatHappened) {
  EXPECT_EQ(run({}, [] { return 143; }).status, 143);
  EXPECT_EQ(run({}, []() -> int { throw std::runtime_error("no"); }).status, 1);
  EXPECT_EQ(run({}, []() -> int { throw command_line::UsageError("no"); }).status, 2);
  for (const Arguments& wrong :
       {Arguments{"--lr", "-1"}, Arguments{"--lr", "x"}, Arguments{"--resume", "auto"}, Arguments{"--nonsense"},
        Arguments{"--rank", "0"}, Arguments{"--zero"}, Arguments{"--lockstep", "3"}}) {
    const Outcome outcome = run(wrong);
    EXPECT_EQ(outcome.status, 2) << wrong.front();
    EXPECT_EQ(outcome.calls, 0) << wrong.front();
  }
}

}  // namespace
}  // namespace lockstep::train
