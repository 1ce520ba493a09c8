// mnist_train as its users see it: command line, output, exit status, and equal results in every mode.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "lockstep/core/cuda/device.h"
#include "tests/apps/train_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  const std::size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - (begin == std::string::npos ? -1 : begin));
}

std::vector<double> losses_of(const std::string& file) {
  std::ifstream in(file);
  std::vector<double> losses;
  for (std::string line; std::getline(in, line);) losses.push_back(nlohmann::json::parse(line).at("loss"));
  return losses;
}

struct BadCommand {
  const char* name;
  std::vector<std::string> arguments;
  int status;
  const char* message;
};

void PrintTo(const BadCommand& command, std::ostream* out) {
  *out << command.name;
}

class MnistTrainRefuses : public ::testing::TestWithParam<BadCommand> {};

TEST_P(MnistTrainRefuses, InOneClearLine) {
  const std::string name = GetParam().name;
  if (cuda::is_available() && (name == "cuda" || name == "nccl")) GTEST_SKIP() << "this machine has a CUDA device";
  const ProcessResult result = train(GetParam().arguments, 30);
  EXPECT_EQ(result.status, GetParam().status) << result.err;
  EXPECT_NE(result.err.find(GetParam().message), std::string::npos) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
}

INSTANTIATE_TEST_SUITE_P(
    CommandLines, MnistTrainRefuses,
    ::testing::Values(
        BadCommand{"unknown_flag", {"--nonsense"}, 2, "--nonsense"},
        BadCommand{"batch_size_0", {"--batch-size", "0"}, 2, "--batch-size: 0 is out of range; expected 1 or more"},
        BadCommand{"batch_size_text", {"--batch-size", "many"}, 2, "--batch-size"},
        BadCommand{"momentum_of_adam",
                   {"--optimizer", "adam", "--momentum", "0.5"},
                   2,
                   "--momentum belongs to --optimizer sgd, and this is adam"},
        BadCommand{"unknown_model", {"--model", "resnet"}, 2, "resnet"},
        BadCommand{"lockstep_6", {"--lockstep", "6"}, 2, "--lockstep 6 is not a power of two"},
        BadCommand{"lockstep_0", {"--lockstep", "0"}, 2, "--lockstep 0 is not a power of two"},
        BadCommand{"lockstep_8_of_4_samples",
                   {"--lockstep", "8", "--batch-size", "4"},
                   2,
                   "--lockstep 8 is more than --batch-size 4"},
        BadCommand{"lockstep_2_for_3_devices",
                   {"--lockstep", "2", "--mode", "dp", "--devices", "0,1,2"},
                   2,
                   "--lockstep 2 cannot be shared by 3 workers"},
        BadCommand{"resume_auto_of_nothing", {"--resume", "auto"}, 2, "--resume auto needs --checkpoint FILE"},
        BadCommand{"cuda", {"--device", "cuda"}, 2, "--device cuda is not available"},
        BadCommand{"nccl", {"--backend", "nccl"}, 2, "--backend nccl"},
        BadCommand{"backend", {"--backend", "smoke"}, 2, "--backend"},
        BadCommand{"nproc_single", {"--mode", "single", "--nproc", "2"}, 2, "--nproc belongs to --mode ddp"},
        BadCommand{"devices_single", {"--mode", "single", "--devices", "0,1"}, 2, "--devices belongs to --mode dp"},
        BadCommand{"bad_devices",
                   {"--devices", "0,x"},
                   2,
                   "--devices: 'x' is no whole number, or too large; expected 0 to 1023"},
        BadCommand{"empty_device", {"--devices", "0,,"}, 2, "--devices: '0,,' has an empty item"},
        BadCommand{
            "negative_seed", {"--seed", "-1"}, 2, "--seed: '-1' is no whole number, or too large; expected 0 or more"},
        BadCommand{"overflow",
                   {"--max-steps", "99999999999999999999"},
                   2,
                   "--max-steps: '99999999999999999999' is no whole number, or too large"},
        BadCommand{"nan_timeout", {"--timeout", "nan"}, 2, "--timeout: 'nan' is no finite number"},
        BadCommand{"amp_unknown", {"--amp", "int8"}, 2, "--amp"},
        BadCommand{"compress_single", {"--compress", "fp16"}, 2, "--compress belongs to --mode ddp"},
        BadCommand{"compress_unknown", {"--mode", "ddp", "--compress", "zip"}, 2, "--compress"},
        BadCommand{"compress_lockstep",
                   {"--mode", "ddp", "--compress", "bf16", "--lockstep", "4"},
                   2,
                   "--compress bf16 cannot be used with --lockstep"},
        BadCommand{"accumulate_0", {"--accumulate", "0"}, 2, "--accumulate 0 is out of range"},
        BadCommand{"accumulate_lockstep",
                   {"--accumulate", "2", "--lockstep", "4"},
                   2,
                   "--accumulate is implied by --lockstep"},
        BadCommand{
            "sync_single", {"--sync-batch-norm", "--model", "lenet-bn"}, 2, "--sync-batch-norm belongs to --mode ddp"},
        BadCommand{"sync_lenet",
                   {"--mode", "ddp", "--sync-batch-norm"},
                   2,
                   "--sync-batch-norm needs a model with batch norm, which lenet has not"},
        BadCommand{"sync_lockstep",
                   {"--mode", "ddp", "--sync-batch-norm", "--model", "lenet-bn", "--lockstep", "4"},
                   2,
                   "--sync-batch-norm cannot be used with --lockstep"},
        BadCommand{"trace_single", {"--trace", "x.json"}, 2, "--trace belongs to --mode ddp"},
        BadCommand{"init_method_single",
                   {"--init-method", "tcp://127.0.0.1:29500"},
                   2,
                   "--init-method belongs to --mode ddp, with --rank and --world-size or a launcher"},
        BadCommand{"async_alone", {"--checkpoint-async"}, 2, "--checkpoint-async needs --checkpoint FILE"},
        BadCommand{"keep_alone", {"--keep-checkpoints", "2"}, 2, "--keep-checkpoints needs --checkpoint FILE"},
        BadCommand{"zero_single", {"--zero"}, 2, "--zero belongs to --mode ddp"},
        BadCommand{"portable_alone", {"--lockstep-portable"}, 2, "--lockstep-portable belongs to --lockstep"},
        BadCommand{"portable_half", {"--lockstep-portable", "--lockstep", "4", "--amp", "bf16"}, 2, "leave out --amp"},
        BadCommand{"negative_lr", {"--lr", "-1"}, 2, "--lr: -1 is out of range; expected 0 or more"},
        BadCommand{"rank_without_world_size", {"--rank", "0"}, 2, "--rank requires --world-size"},
        BadCommand{"rank_and_nproc",
                   {"--rank=0", "--world_size=2", "--nproc=2"},
                   2,
                   "--rank and --world-size are of processes started one by one"},
        BadCommand{"underscores", {"--checkpoint_every", "5"}, 2, "--checkpoint-every needs --checkpoint FILE"},
        BadCommand{"no_data", {"--data-dir", "/nonexistent"}, 1, "/nonexistent"},
        BadCommand{"no_rank", {"--mode", "ddp", "--init-method", "env://"}, 1, "environment variable RANK"},
        BadCommand{"bad_url", {"--mode", "ddp", "--init-method", "ftp://x"}, 1, "ftp"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(MnistTrain, NamesTheMissingMasterAddress) {
  auto environment = kClean;
  environment.push_back({"RANK", "0"});
  environment.push_back({"WORLD_SIZE", "2"});
  const ProcessResult result =
      run_process({LOCKSTEP_MNIST_TRAIN, "--mode", "ddp"}, environment, std::chrono::seconds(30));
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("MASTER_ADDR"), std::string::npos) << result.err;
}

TEST(MnistTrain, HelpAndVersion) {
  EXPECT_EQ(train({"--help"}).status, 0);
  const ProcessResult version = train({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_EQ(version.out.rfind("mnist_train ", 0), 0u);
}

TEST(MnistTrain, EndsWithTheResultLine) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const ProcessResult result = train(dataset() + std::vector<std::string>{"--max-steps", "3", "--model", "mlp"});
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(std::regex_match(
      last_line(result.out),
      std::regex("result: test_accuracy=0\\.\\d{4} test_loss=\\d+\\.\\d{4} steps=3 seconds=\\d+\\.\\d\\d "
                 "images_per_s=\\d+ weights_sha256=[0-9a-f]{64} state_sha256=[0-9a-f]{64}")))
      << result.out;
}

TEST(MnistTrain, MetricsHoldALineForEachStep) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const std::string metrics = directory.file("metrics.jsonl");
  ASSERT_EQ(
      train(dataset() + std::vector<std::string>{"--max-steps", "3", "--model", "mlp", "--metrics", metrics}).status,
      0);
  std::ifstream in(metrics);
  std::string line;
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(std::getline(in, line));
    const auto entry = nlohmann::json::parse(line);
    EXPECT_EQ(entry.at("step"), step);
    EXPECT_EQ(entry.at("epoch"), 0);
    EXPECT_EQ(std::strtod(entry.at("loss_hex").get<std::string>().c_str(), nullptr), entry.at("loss").get<double>());
    EXPECT_GT(entry.at("images_per_s").get<double>(), 0.0);
  }
  EXPECT_FALSE(std::getline(in, line));
}

// The curves of all modes against single's, step by step. Modes add the same numbers in another order, so they differ
// by rounding; a high learning rate amplifies that without limit (an argmax of a pooling window flips, and the runs
// part), so this one is low.
TEST(MnistTrain, CurvesOfAllModesAgree) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  constexpr double kRelative = 1e-4;
  const TemporaryDirectory directory;
  const auto curve = [&](const std::string& name, const std::vector<std::string>& mode) {
    const std::string metrics = directory.file(name + ".jsonl");
    const ProcessResult result =
        train(dataset() +
              std::vector<std::string>{"--model", "lenet", "--batch-size", "64", "--max-steps", "200", "--lr", "0.005",
                                       "--momentum", "0.5", "--metrics", metrics} +
              mode);
    EXPECT_EQ(result.status, 0) << name << ": " << result.err;
    return losses_of(metrics);
  };
  const std::vector<double> single = curve("single", {"--mode", "single"});
  ASSERT_EQ(single.size(), 200u);
  ASSERT_LT(single.back(), single.front()) << "the model must learn for the comparison to mean anything";
  for (const auto& [name, mode] :
       std::vector<std::pair<std::string, std::vector<std::string>>>{{"dp", {"--mode", "dp", "--devices", "0,1"}},
                                                                     {"ddp2", {"--mode", "ddp", "--nproc", "2"}},
                                                                     {"ddp4", {"--mode", "ddp", "--nproc", "4"}}}) {
    SCOPED_TRACE(name);
    const std::vector<double> other = curve(name, mode);
    ASSERT_EQ(other.size(), single.size());
    for (std::size_t i = 0; i < single.size(); ++i)
      ASSERT_LE(std::abs(other[i] - single[i]), kRelative * std::abs(single[i])) << "step " << i;
  }
}

// Slices change the order of additions, compression the gradients a little: the curves stay within the bound of each.
TEST(MnistTrain, CurvesInSlicesAndCompressed) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const auto curve = [&](const std::string& name, const std::vector<std::string>& mode) {
    const std::string metrics = directory.file(name + ".jsonl");
    const ProcessResult result =
        train(dataset() +
              std::vector<std::string>{"--model", "lenet", "--batch-size", "64", "--max-steps", "60", "--lr", "0.005",
                                       "--momentum", "0.5", "--threads", "1", "--metrics", metrics} +
              mode);
    EXPECT_EQ(result.status, 0) << name << ": " << result.err;
    return losses_of(metrics);
  };
  const std::vector<double> single = curve("single", {"--mode", "single"});
  ASSERT_LT(single.back(), single.front()) << "the model must learn for the comparison to mean anything";
  const std::vector<std::string> ddp{"--mode", "ddp", "--nproc", "2"};
  struct Row {
    const char* name;
    std::vector<std::string> mode;
    double relative;
  };
  for (const auto& [name, mode, relative] : std::vector<Row>{
           {"slices", {"--accumulate", "3"}, 1e-4},
           {"ddp_slices", ddp + std::vector<std::string>{"--accumulate", "3"}, 1e-4},
           {"fp16", ddp + std::vector<std::string>{"--compress", "fp16"}, 1e-5},
           {"bf16", ddp + std::vector<std::string>{"--compress", "bf16"}, 1e-4},
           {"powersgd", ddp + std::vector<std::string>{"--compress", "powersgd"}, 1e-4},  // off in its first 1000 steps
       }) {
    SCOPED_TRACE(name);
    const std::vector<double> other = curve(name, mode);
    ASSERT_EQ(other.size(), single.size());
    double largest = 0.0;
    for (std::size_t i = 0; i < single.size(); ++i)
      largest = std::max(largest, std::abs(other[i] - single[i]) / std::abs(single[i]));
    EXPECT_LE(largest, relative);
    RecordProperty(name, fmt::format("{:.1e}", largest));
  }
}

// Batch norm over all processes gives the curve of one; batch norm by process does not.
TEST(MnistTrain, SynchronisedBatchNormTrainsAsOneProcess) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  constexpr double kRelative = 1e-4;
  const TemporaryDirectory directory;
  const auto curve = [&](const std::string& name, const std::vector<std::string>& mode) {
    const std::string metrics = directory.file(name + ".jsonl");
    const ProcessResult result =
        train(dataset() +
              std::vector<std::string>{"--model", "lenet-bn", "--batch-size", "63", "--max-steps", "30", "--lr",
                                       "0.005", "--momentum", "0.5", "--threads", "1", "--metrics", metrics} +
              mode);
    EXPECT_EQ(result.status, 0) << name << ": " << result.err;
    return losses_of(metrics);
  };
  const std::vector<double> single = curve("single", {"--mode", "single"});
  const auto largest = [&](const std::vector<double>& other) {
    double difference = other.size() == single.size() ? 0.0 : HUGE_VAL;
    for (std::size_t i = 0; i < std::min(other.size(), single.size()); ++i)
      difference = std::max(difference, std::abs(other[i] - single[i]) / std::abs(single[i]));
    return difference;
  };
  const std::vector<std::string> ddp{"--mode", "ddp", "--nproc", "2"};
  const double synchronised = largest(curve("synchronised", ddp + std::vector<std::string>{"--sync-batch-norm"}));
  EXPECT_LE(synchronised, kRelative);
  EXPECT_GT(largest(curve("by_process", ddp)), 10 * kRelative);
  RecordProperty("synchronised", fmt::format("{:.1e}", synchronised));
}

std::string hash_of(const ProcessResult& result) {
  EXPECT_EQ(result.status, 0) << result.err;
  const std::size_t at = result.out.find("weights_sha256=");
  return at == std::string::npos ? "none" : result.out.substr(at, 15 + 64);
}

// With the optimizer's state divided over the processes, or gradients and parameters too: the same bits, also after a
// resumption with another number of processes and another --zero, and without.
TEST(MnistTrain, ZeroEndsWithTheSameBits) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const std::vector<std::string> zero{"--zero"};
  for (const char* optimizer : {"sgd", "adamw"}) {
    SCOPED_TRACE(optimizer);
    const bool is_adamw = std::string(optimizer) == "adamw";
    const std::vector<std::string> saver{is_adamw ? "--zero=3" : "--zero"}, loader{is_adamw ? "--zero=2" : "--zero"};
    const auto common = dataset() + std::vector<std::string>{"--model",     "lenet",   "--schedule", "constant",
                                                             "--optimizer", optimizer, "--threads",  "1"};
    const auto steps = [&](int n) { return std::vector<std::string>{"--max-steps", std::to_string(n)}; };
    const std::vector<std::string> plain{"--mode", "ddp", "--nproc", "2"};
    EXPECT_EQ(hash_of(train(common + plain + steps(12) + zero)), hash_of(train(common + plain + steps(12))));

    const std::vector<std::string> lockstep{"--lockstep", "4"};
    const auto ranks = [&](const char* n) {
      return lockstep + std::vector<std::string>{"--mode", "ddp", "--nproc", n};
    };
    const std::string whole = hash_of(train(common + lockstep + steps(12)));
    const std::string checkpoint = directory.file(std::string(optimizer) + ".safetensors");
    EXPECT_NE(
        hash_of(train(common + ranks("3") + steps(7) + saver + std::vector<std::string>{"--checkpoint", checkpoint})),
        whole);
    const std::vector<std::string> resume{"--resume", checkpoint};
    EXPECT_EQ(hash_of(train(common + ranks("2") + steps(12) + loader + resume)), whole);
    EXPECT_EQ(hash_of(train(common + lockstep + steps(12) + resume)), whole);
  }
}

// Products in a half type, weights and their gradients in float32: the curve stays near that of float32. float16 goes
// on from a checkpoint with the scale of its loss.
TEST(MnistTrain, MixedPrecisionStaysCloseAndResumes) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const std::string checkpoint = directory.file("checkpoint.safetensors");
  const auto common =
      dataset() + std::vector<std::string>{"--model", "lenet", "--schedule", "constant", "--lr", "0.005"};
  const auto run = [&](const std::string& name, const std::vector<std::string>& more, const char* steps = "40") {
    const ProcessResult result = train(
        common + more + std::vector<std::string>{"--max-steps", steps, "--metrics", directory.file(name + ".jsonl")});
    EXPECT_EQ(result.status, 0) << name << ": " << result.err;
    return weights_of(result.out);
  };
  const auto losses = [&](const std::string& name) { return losses_of(directory.file(name + ".jsonl")); };
  const std::string plain = run("plain", {});
  const std::vector<double> expected = losses("plain");
  std::string half;
  for (const auto& [name, more] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {"bf16", {"--amp", "bf16"}},
           {"fp16", {"--amp", "fp16"}},
           {"bf16_ddp", {"--amp", "bf16", "--mode", "ddp", "--nproc", "2"}},
           {"fp16_ddp", {"--amp", "fp16", "--mode", "ddp", "--nproc", "2"}}}) {
    SCOPED_TRACE(name);
    const std::string weights = run(name, more);
    if (name == "fp16") half = weights;
    EXPECT_NE(weights, plain);
    const std::vector<double> found = losses(name);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      ASSERT_LE(std::abs(found[i] - expected[i]), 0.05 * expected[0]) << "step " << i;
  }
  run("part", {"--amp", "fp16", "--checkpoint", checkpoint}, "25");
  EXPECT_EQ(run("rest", {"--amp", "fp16", "--resume", checkpoint}), half);
  const ProcessResult other = train(common + std::vector<std::string>{"--max-steps", "40", "--resume", checkpoint});
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("was trained with amp fp16, not off"), std::string::npos) << other.err;
}

// The same job however its processes meet.
TEST(MnistTrain, EveryWayToMeetGivesTheSameResult) {
  if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  const TemporaryDirectory directory;
  const auto common =
      dataset() + std::vector<std::string>{"--mode", "ddp", "--model", "lenet", "--max-steps", "30", "--threads", "1"};
  const auto stable_part = [](const ProcessResult& result) {
    EXPECT_EQ(result.status, 0) << result.err;
    std::smatch match;
    EXPECT_TRUE(std::regex_search(result.out, match,
                                  std::regex("test_accuracy=\\S+ test_loss=\\S+ steps=\\d+|weights_sha256=\\w+")));
    const std::size_t hash = result.out.find("weights_sha256=");
    return match.str() + " " + result.out.substr(hash, 15 + 64);
  };
  const std::string spawned = stable_part(train(common + std::vector<std::string>{"--nproc", "2"}));
  const std::string file = "file://" + directory.file("meeting");
  EXPECT_EQ(stable_part(train(common + std::vector<std::string>{"--nproc", "2", "--init-method", file})), spawned);
  // Bytes by another way, the same bits.
  EXPECT_EQ(stable_part(train(common + std::vector<std::string>{"--nproc", "2", "--backend", "shm"})), spawned);
  const std::vector<std::string> gloo = {"--nproc", "2", "--backend", "gloo"};
  if (const ProcessResult result = train(common + gloo); result.status != 2) {
    EXPECT_EQ(stable_part(result), spawned);
  }
  const std::vector<std::string> launched = {LOCKSTEP_RUN, "--nproc-per-node", "2", "--", LOCKSTEP_MNIST_TRAIN};
  EXPECT_EQ(stable_part(run_process(launched + common, kClean, std::chrono::seconds(300))), spawned);
}

}  // namespace
}  // namespace lockstep
