// mnist_train --lockstep: the same bits in every mode and on any number of workers, on real images.

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/cpu/instruction_set.h"
#include "tests/apps/train_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

using Arguments = std::vector<std::string>;

struct Workers {
  const char* name;
  Arguments arguments;
};

const std::vector<Workers> kWorkers = {
    {"single with 2 threads", {"--mode", "single", "--threads", "2"}},
    {"2 devices", {"--mode", "dp", "--devices", "0,1"}},
    {"4 devices", {"--mode", "dp", "--devices", "0,1,2,3"}},
    {"1 process", {"--mode", "ddp", "--nproc", "1"}},
    {"2 processes", {"--mode", "ddp", "--nproc", "2", "--threads", "2"}},
    {"3 processes", {"--mode", "ddp", "--nproc", "3"}},
    {"4 processes", {"--mode", "ddp", "--nproc", "4", "--threads", "1"}},
    {"5 processes", {"--mode", "ddp", "--nproc", "5"}},
    {"8 processes", {"--mode", "ddp", "--nproc", "8"}},
};

struct Case {
  const char* model;
  const char* optimizer;
  int steps;  ///< by default; LOCKSTEP_TEST_STEPS replaces it
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model << ' ' << c.optimizer;
}

class LockstepModels : public ::testing::TestWithParam<Case> {};

TEST_P(LockstepModels, HaveTheSameBitsOnAnyWorkers) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const int steps = amount("LOCKSTEP_TEST_STEPS", GetParam().steps);
  const auto run = [&](const std::string& name, const Arguments& workers) {
    const std::string metrics = directory.file("metrics.jsonl");
    const ProcessResult result =
        train(dataset() +
                  Arguments{"--lockstep", "8", "--batch-size", "64", "--max-steps", std::to_string(steps), "--model",
                            GetParam().model, "--optimizer", GetParam().optimizer, "--metrics", metrics} +
                  workers,
              900);
    EXPECT_EQ(result.status, 0) << name << ": " << result.err;
    return std::pair(weights_of(result.out), loss_bits_of(metrics));
  };
  const auto expected = run("single", {"--mode", "single", "--threads", "1"});
  ASSERT_FALSE(expected.first.empty());
  ASSERT_EQ(expected.second.size(), static_cast<std::size_t>(steps));
  for (const Workers& workers : kWorkers) {
    const auto found = run(workers.name, workers.arguments);
    EXPECT_EQ(found.first, expected.first) << workers.name;
    EXPECT_EQ(found.second, expected.second) << workers.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Lockstep, LockstepModels,
                         ::testing::Values(Case{"lenet", "sgd", 60}, Case{"lenet", "adamw", 20}, Case{"cnn", "sgd", 6},
                                           Case{"cnn", "adamw", 4}, Case{"lenet-bn", "sgd", 40},
                                           Case{"lenet-bn", "adamw", 20}, Case{"mlp", "sgd", 6}),
                         [](const auto& info) {
                           std::string name = std::string(info.param.model) + "_" + info.param.optimizer;
                           for (char& c : name) c = c == '-' ? '_' : c;
                           return name;
                         });

// The workers change from one part of the run to the next.
TEST(Lockstep, SurvivesFourTwoThreeAndEightWorkers) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const auto common = dataset() + Arguments{"--lockstep", "8", "--model", "lenet-bn", "--schedule", "constant"};
  const ProcessResult whole = train(common + Arguments{"--max-steps", "80"});
  ASSERT_EQ(whole.status, 0) << whole.err;
  const std::string checkpoint = directory.file("checkpoint.safetensors");
  ProcessResult part;
  int steps = 0;
  for (const char* processes : {"4", "2", "3", "8"}) {
    steps += 20;
    part = train(common + Arguments{"--max-steps", std::to_string(steps), "--mode", "ddp", "--nproc", processes,
                                    "--checkpoint", checkpoint, "--resume", "auto"});
    ASSERT_EQ(part.status, 0) << part.err;
    EXPECT_EQ(part.out.find("resumed from") != std::string::npos, steps > 20) << part.out;
  }
  EXPECT_EQ(weights_of(part.out), weights_of(whole.out));
}

TEST(Lockstep, RefusesToGoOnWithAnotherNumberOfShards) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const std::string checkpoint = directory.file("checkpoint.safetensors");
  ASSERT_EQ(train(dataset() + Arguments{"--lockstep", "8", "--max-steps", "3", "--checkpoint", checkpoint}).status, 0);
  const ProcessResult four =
      train(dataset() + Arguments{"--lockstep", "4", "--max-steps", "6", "--resume", checkpoint});
  EXPECT_EQ(four.status, 1);
  EXPECT_NE(four.err.find("was trained with --lockstep 8, not 4"), std::string::npos) << four.err;
  // Kernels chosen otherwise: another fingerprint, of which both are shown.
  auto environment = kClean;
  environment.emplace_back("LOCKSTEP_REFERENCE", "1");
  const ProcessResult other = run_process(Arguments{LOCKSTEP_MNIST_TRAIN} + dataset() +
                                              Arguments{"--lockstep", "8", "--max-steps", "6", "--resume", checkpoint},
                                          environment, std::chrono::seconds(300));
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("cannot be continued with the same bits"), std::string::npos) << other.err;
  EXPECT_NE(other.err.find("LOCKSTEP_REFERENCE=1"), std::string::npos) << other.err;
}

// The weights that a short run must end with (published_hashes.txt), on any processor. A change here is a change of
// every result that users have.
TEST(Lockstep, PublishedHashesHold) {
  if (!data::has_mnist()) GTEST_SKIP() << "MNIST is not here";
  for (const std::string model : {"lenet", "lenet-bn", "cnn", "mlp"}) {
    const ProcessResult result = train({"--dataset", "mnist", "--lockstep", "8", "--batch-size", "64", "--max-steps",
                                        "12", "--model", model, "--mode", "ddp", "--nproc", "3"});
    ASSERT_EQ(result.status, 0) << result.err;
    expect_published(model, result.out);
  }
}

// Losses and weights are the same with each instruction set that this processor has, on any number of threads.
TEST(Lockstep, TheInstructionSetDoesNotChangeBits) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  for (const std::string model : {"lenet", "cnn", "mlp"}) {
    std::pair<std::string, std::vector<std::string>> expected;
    for (const cpu::InstructionSet set : cpu::instruction_sets())
      for (const char* threads : set == cpu::instruction_sets().front() ? std::vector{"1", "3"} : std::vector{"2"}) {
        SCOPED_TRACE(model + " with " + cpu::name(set) + " on " + threads + " thread(s)");
        auto environment = kClean;
        environment.emplace_back("LOCKSTEP_CPU", cpu::name(set));
        const std::string metrics = directory.file("metrics.jsonl");
        const ProcessResult result =
            run_process(Arguments{LOCKSTEP_MNIST_TRAIN} + dataset() +
                            Arguments{"--lockstep", "2", "--batch-size", "48", "--max-steps", "2", "--model", model,
                                      "--threads", threads, "--metrics", metrics},
                        environment, std::chrono::seconds(300));
        ASSERT_EQ(result.status, 0) << result.err;
        const std::pair found(weights_of(result.out), loss_bits_of(metrics));
        if (expected.first.empty()) expected = found;
        EXPECT_EQ(found, expected);
      }
  }
}

TEST(Lockstep, BisectNamesTheFirstDifference) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const auto trace = [&](const std::string& name, const Arguments& arguments) {
    const std::string file = directory.file(name);
    const ProcessResult result =
        train(dataset() + Arguments{"--lockstep", "8", "--max-steps", "6", "--trace-hashes", file} + arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    return file;
  };
  const auto bisect = [](const std::string& a, const std::string& b) {
    return run_process({LOCKSTEP_BISECT, a, b}, kClean, std::chrono::seconds(60));
  };
  const std::string single = trace("single", {});
  const std::string three = trace("three", {"--mode", "ddp", "--nproc", "3"});
  const ProcessResult equal = bisect(single, three);
  EXPECT_EQ(equal.status, 0) << equal.err;
  EXPECT_EQ(equal.out, "equal: 6 step(s), from 0 to 5\n");

  // A hash of one weight changed by hand.
  std::ifstream in(three);
  std::ofstream out(directory.file("changed"));
  for (std::string text; std::getline(in, text);) {
    auto line = nlohmann::ordered_json::parse(text);
    if (line.contains("step") && line["step"] == 4) line["weights"]["fc1.bias"] = "0";
    out << line.dump() << '\n';
  }
  out.close();
  const ProcessResult changed = bisect(single, directory.file("changed"));
  EXPECT_EQ(changed.status, 1);
  EXPECT_NE(changed.out.find("first difference at step 4: the new value of fc1.bias is "), std::string::npos)
      << changed.out;
  EXPECT_NE(changed.out.find("in B (4 equal step(s) before)"), std::string::npos) << changed.out;

  const ProcessResult other = bisect(single, trace("other", {"--lr", "0.03"}));
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.out.find("first difference at step 0: the new value of conv1.weight"), std::string::npos)
      << other.out;

  // Traces that end earlier: at a step's end, and in the middle of a line.
  std::ifstream whole(single);
  const std::string text{std::istreambuf_iterator<char>(whole), {}};
  const std::size_t last_line = text.rfind('\n', text.size() - 2) + 1;
  std::ofstream(directory.file("shorter")) << text.substr(0, last_line);
  const ProcessResult shorter = bisect(single, directory.file("shorter"));
  EXPECT_EQ(shorter.status, 0);
  EXPECT_EQ(shorter.out, "equal as far as both go: 5 step(s), from 0 to 4; A alone has 1 more step(s), from 5 to 5\n");
  std::ofstream(directory.file("cut")) << text.substr(0, last_line + 20);
  const ProcessResult cut = bisect(directory.file("cut"), single);
  EXPECT_EQ(cut.status, 1);
  EXPECT_NE(cut.out.find("; A ends in the middle of a line"), std::string::npos) << cut.out;

  const ProcessResult absent = bisect(single, directory.file("absent"));
  EXPECT_EQ(absent.status, 1);
  EXPECT_NE(absent.err.find("absent': No such file or directory"), std::string::npos) << absent.err;
  std::ofstream(directory.file("deep")) << R"({"step":1,"gradients":)" << std::string(200'000, '[') << "\n{}\n";
  for (const auto& [name, message] : {std::pair("deep", "line 1: is nested too deeply at offset"),
                                      std::pair("", "is a directory; expected a file")}) {
    const ProcessResult refused = bisect(single, directory.file(name));
    EXPECT_EQ(refused.status, 1);
    EXPECT_NE(refused.err.find(message), std::string::npos) << refused.err;
  }
  EXPECT_EQ(run_process({LOCKSTEP_BISECT, single}, kClean, std::chrono::seconds(60)).status, 2);
}

}  // namespace
}  // namespace lockstep
