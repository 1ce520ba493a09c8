// gpt_train, gpt_generate and gpt_tokenize as their users see them.

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/apps/train_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

class GptPrograms : public ::testing::Test {
 protected:
  GptPrograms() {
    std::ofstream text(text_);
    for (int i = 0; i < 400; ++i)
      text << "line " << i * 7919 % 1000 << " says: the quick brown fox, " << i % 13 << "!\n";
  }
  /// A few short steps; `arguments` may say otherwise.
  ProcessResult try_gpt(const std::vector<std::string>& arguments) {
    std::vector<std::string> command{LOCKSTEP_GPT_TRAIN, "--text", text_};
    const std::pair<std::string, std::string> defaults[] = {{"--max-steps", "3"},
                                                            {"--evaluate-every", "2"},
                                                            {"--evaluate-windows", "4"},
                                                            {"--batch-size", "8"},
                                                            {"--dropout", "0.1"}};
    for (const auto& [option, value] : defaults)
      if (std::find(arguments.begin(), arguments.end(), option) == arguments.end())
        command = command + std::vector<std::string>{option, value};
    return run_process(command + arguments, kClean, std::chrono::seconds(120));
  }
  ProcessResult train_gpt(const std::vector<std::string>& arguments) {
    const ProcessResult result = try_gpt(arguments);
    EXPECT_EQ(result.status, 0) << result.err;
    return result;
  }

  const TemporaryDirectory folder_;
  const std::string text_ = folder_.file("text.txt");
};

// Fewer workers than logical shards accumulate over those that they have; AdamW, clipping and dropout are on.
TEST_F(GptPrograms, LockstepGivesOneHashOnAnyNumberOfWorkers) {
  const std::vector<std::string> lockstep{"--lockstep", "8"};
  const std::string hash = weights_of(train_gpt(lockstep).out);
  ASSERT_FALSE(hash.empty());
  for (const char* processes : {"2", "3", "8"})
    EXPECT_EQ(weights_of(train_gpt(lockstep + std::vector<std::string>{"--mode", "ddp", "--nproc", processes}).out),
              hash)
        << processes;
  EXPECT_EQ(weights_of(train_gpt(lockstep + std::vector<std::string>{"--mode", "dp", "--devices", "0,1"}).out), hash);
  EXPECT_EQ(weights_of(train_gpt(lockstep + std::vector<std::string>{"--recompute"}).out), hash);
}

TEST_F(GptPrograms, ModesAgree) {
  const auto loss = [&](const std::vector<std::string>& arguments) {
    const std::string out = train_gpt(arguments + std::vector<std::string>{"--dropout", "0"}).out;
    const std::size_t at = out.find("validation_loss=");
    EXPECT_NE(at, std::string::npos) << out;
    return at == std::string::npos ? 0.0 : std::stod(out.substr(at + 16));
  };
  const double single = loss({});
  EXPECT_NEAR(loss({"--mode", "ddp", "--nproc", "2"}), single, 1e-3);
  EXPECT_NEAR(loss({"--mode", "dp", "--devices", "0,1"}), single, 1e-3);
  EXPECT_NEAR(loss({"--accumulate", "4"}), single, 1e-3);
  EXPECT_NEAR(loss({"--amp", "bf16"}), single, 0.1);
}

TEST_F(GptPrograms, WhatIsTrainedIsContinued) {
  const std::string model = folder_.file("model"), tuned = folder_.file("tuned"), adapters = folder_.file("adapters");
  train_gpt({"--out", model, "--sample", "8"});
  const auto generate = [&](const std::vector<std::string>& arguments) {
    const ProcessResult result = run_process(
        std::vector<std::string>{LOCKSTEP_GPT_GENERATE} + arguments + std::vector<std::string>{"--tokens", "90"},
        kClean, std::chrono::seconds(60));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_EQ(result.out.substr(0, 5), "line ");
    return result.out;
  };
  EXPECT_EQ(generate({model, "line 1"}), generate({model, "line 1", "--no-cache"}));
  train_gpt({"--model", model, "--lora", "2", "--adapters", adapters, "--out", tuned, "--dropout", "0"});
  EXPECT_LT(std::filesystem::file_size(adapters) * 10, std::filesystem::file_size(model + "/model.safetensors"));
  EXPECT_EQ(generate({model, "line 1", "--adapters", adapters, "--temperature", "0"}),
            generate({tuned, "line 1", "--temperature", "0"}));
}

TEST_F(GptPrograms, TokenFilesGiveTheSameTraining) {
  const std::string data = folder_.file("data");
  const ProcessResult tokenized = run_process({LOCKSTEP_GPT_TOKENIZE, text_, data}, kClean, std::chrono::seconds(60));
  ASSERT_EQ(tokenized.status, 0) << tokenized.err;
  const std::vector<std::string> short_run{
      LOCKSTEP_GPT_TRAIN, "--max-steps", "2", "--evaluate-windows", "2", "--batch-size", "2"};
  const auto hash = [&](const std::vector<std::string>& from) {
    const ProcessResult result = run_process(short_run + from, kClean, std::chrono::seconds(60));
    EXPECT_EQ(result.status, 0) << result.err;
    return weights_of(result.out);
  };
  EXPECT_EQ(hash({"--data", data}), hash({"--text", text_}));
}

TEST_F(GptPrograms, StoppedAndResumedEndsWithTheSameBits) {
  const std::string checkpoint = folder_.file("checkpoint");
  const std::string whole = weights_of(train_gpt({"--max-steps", "4"}).out);
  train_gpt({"--max-steps", "4", "--checkpoint", checkpoint, "--checkpoint-every", "2", "--keep-checkpoints", "2"});
  std::string half;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    if (entry.path().string().find("checkpoint") != std::string::npos && entry.path().string() != checkpoint)
      half = entry.path().string();
  ASSERT_FALSE(half.empty());
  EXPECT_EQ(weights_of(train_gpt({"--max-steps", "4", "--resume", half}).out), whole);
}

// What could not be known before: here that the index of an older model is no file.
TEST_F(GptPrograms, AModelWithoutItsPlaceIsRescued) {
  const std::string model = folder_.file("model"), out = folder_.file("out"), adapters = folder_.file("adapters");
  train_gpt({"--out", model});
  std::filesystem::create_directories(out + "/model.safetensors.index.json/in the way");
  const std::vector<std::string> tuned{"--model", model, "--lora", "2", "--adapters", adapters},
      mesh{"--nproc", "2", "--mesh", "tensor=2"};
  for (const auto& [arguments, place] : {std::pair(tuned, out + ".rescued"), std::pair(mesh, out + ".rescued2")}) {
    // What the run itself could not write does not keep the program from that, and is no failure of another rank.
    const ProcessResult result = try_gpt(arguments + std::vector<std::string>{"--out", out, "--metrics", "/dev/full"});
    EXPECT_NE(result.err.find("the metrics file '/dev/full' could not be written, and lacks lines"), std::string::npos)
        << result.err;
    EXPECT_EQ(result.err.find("threw"), std::string::npos) << result.err;
    EXPECT_EQ(result.status, 73);
    EXPECT_NE(result.err.find("the model's files are in '" + place + "'"), std::string::npos) << result.err;
    EXPECT_FALSE(weights_of(result.out).empty()) << result.out;
    train_gpt({"--model", place, "--max-steps", "1"});
  }
  EXPECT_TRUE(std::filesystem::exists(adapters));
}

TEST_F(GptPrograms, AFullDiskIsFoundBeforeTheFirstStep) {
  const std::string model = folder_.file("model"), disk = folder_.file("disk");
  train_gpt({"--out", model});
  std::filesystem::create_directory(disk);
  if (::mount("none", disk.c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here";
  const std::vector<std::string> out{"--out", disk + "/out"};
  for (const auto& arguments :
       {out, out + std::vector<std::string>{"--nproc", "2", "--mesh", "tensor=2"},
        std::vector<std::string>{"--model", model, "--lora", "8", "--adapters", disk + "/adapters"}}) {
    const ProcessResult result = try_gpt(arguments);
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.err.find("No space left on device; it takes "), std::string::npos) << result.err;
    EXPECT_NE(result.err.find("nothing has been computed yet"), std::string::npos) << result.err;
  }
  ::umount(disk.c_str());
}

// The weights that a short run must end with (published_hashes.txt), on any processor.
TEST(GptProgramsPublished, HashHolds) {
  const std::vector<std::string> size{"--lockstep", "8", "--batch-size", "8", "--max-steps", "3"};
  const std::vector<std::string> training{"--lr", "1e-3", "--dropout", "0.1"};
  const std::vector<std::string> evaluation{"--evaluate-every", "3", "--evaluate-windows", "4"};
  const std::vector<std::string> program{LOCKSTEP_GPT_TRAIN, "--text", LOCKSTEP_SOURCE_DIR "/LICENSE"};
  for (const char* processes : {"1", "3"}) {
    const std::vector<std::string> workers{"--mode", "ddp", "--nproc", processes};
    const ProcessResult result =
        run_process(program + size + training + evaluation + workers, kClean, std::chrono::seconds(120));
    ASSERT_EQ(result.status, 0) << result.err;
    expect_published("gpt", result.out);
  }
}

TEST(GptProgramsRefuse, InOneClearLine) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{LOCKSTEP_GPT_TRAIN, "--text", "a", "--data", "b"}, "--text and --data exclude each other"},
      {{LOCKSTEP_GPT_TRAIN, "--lora", "2"}, "--lora belongs to --model"},
      {{LOCKSTEP_GPT_TRAIN, "--preset", "huge"}, "huge"},
      {{LOCKSTEP_GPT_TRAIN, "--lora-alpha", "8"}, "--lora-alpha belongs to --lora"},
      {{LOCKSTEP_GPT_TRAIN, "--preset", "nano", "--model", "x"}, "--preset is the size of a new model"},
      {{LOCKSTEP_GPT_TRAIN, "--epochs", "2"}, "not expected: 2 --epochs"},
      {{LOCKSTEP_GPT_TRAIN, "--min-lr", "0.01"}, "--min-lr 0.01 is above the learning rate, 0.002"},
      {{LOCKSTEP_GPT_TRAIN, "--text", "/nonexistent"}, "cannot open '/nonexistent': No such file"},
      {{LOCKSTEP_GPT_TRAIN, "--text", "/"}, "'/' is a directory; expected a file"},
      {{LOCKSTEP_GPT_TRAIN, "--text", "/dev/zero"}, "'/dev/zero' is a device, not a regular file"},
      {{LOCKSTEP_GPT_GENERATE, "/nonexistent", "x"}, "'/nonexistent' is no folder"},
      {{LOCKSTEP_GPT_TOKENIZE, "/nonexistent", "x"}, "cannot open '/nonexistent'"},
  };
  for (const auto& [arguments, message] : cases) {
    const ProcessResult result = run_process(arguments, kClean, std::chrono::seconds(30));
    EXPECT_NE(result.status, 0);
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

TEST(GptProgramsRefuse, ARankWithoutTheSizeOfTheJob) {
  const std::vector<std::string> program{LOCKSTEP_GPT_TRAIN, "--text", LOCKSTEP_SOURCE_DIR "/LICENSE", "--max-steps",
                                         "1"};
  for (const auto& [name, message] :
       {std::pair("RANK", "world_size is not known: set the environment variable WORLD_SIZE"),
        std::pair("PMIX_RANK", "PMIx tells rank 0 but not the size of the job")}) {
    ProcessEnvironment environment{
        {"RANK", ""}, {"WORLD_SIZE", ""}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29871"}};
    environment.emplace_back(name, "0");
    const ProcessResult result = run_process(program, environment, std::chrono::seconds(30));
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
  }
}

TEST(GptProgramsWarn, OfALogLevelThatIsNone) {
  for (const auto& [level, warns] : {std::pair("loud", true), std::pair("error", false)}) {
    ProcessEnvironment environment = kClean;
    environment.push_back({"LOCKSTEP_LOG_LEVEL", level});
    const ProcessResult result = run_process({LOCKSTEP_GPT_TRAIN, "--version"}, environment, std::chrono::seconds(30));
    EXPECT_EQ(result.err.find("LOCKSTEP_LOG_LEVEL='loud' is ignored: expected trace,") != std::string::npos, warns)
        << result.err;
  }
}

// What has no samples to show trains on; evaluations that never come cost nothing.
TEST_F(GptPrograms, ATrainingThatDivergesIsNotEndedByItsSamples) {
  const std::string weights = folder_.file("weights.safetensors");
  const ProcessResult result = train_gpt({"--lr", "1e30", "--clip", "0", "--warmup", "0", "--sample", "10",
                                          "--evaluate-every", "4611686018427387905", "--checkpoint", weights});
  EXPECT_NE(result.out.find("no sample: [generate] the model gives a token the logit"), std::string::npos)
      << result.out;
  EXPECT_NE(result.out.find("step 3"), std::string::npos) << result.out;
  EXPECT_TRUE(std::filesystem::exists(weights));
}

}  // namespace
}  // namespace lockstep
