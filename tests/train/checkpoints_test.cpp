// The files of a run's checkpoints: names, copies, links; and what a run has told when it writes one.

#include "lockstep/train/checkpoints.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/core/atomic_file.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"
#include "tests/train/training.h"

namespace lockstep::training {
namespace {

namespace fs = std::filesystem;

class CheckpointFiles : public ::testing::Test {
 protected:
  CheckpointFiles() { fs::create_directories(folder_.text()); }
  std::string file(const std::string& name) const { return folder_.text() + "/" + name; }
  static std::string content(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const std::string& path, const std::string& text) {
    AtomicFile out(path);
    out.write(text.data(), text.size());
    out.commit();
  }

  // As little as makes a file a checkpoint.
  static void write_checkpoint(const std::string& path, std::int64_t step) {
    nn::save_safetensors({{"w", ones({1})}}, path, {{"lockstep.checkpoint", "1"}, {"step", std::to_string(step)}});
  }
  static std::string step_of(const std::string& path) { return nn::SafetensorsFile(path).metadata().at("step"); }

 private:
  testing::TemporaryPath folder_;
};

TEST_F(CheckpointFiles, AreKeptBehindALink) {
  fs::create_directory(file("elsewhere"));
  fs::create_symlink(file("elsewhere/big.safetensors"), file("c.safetensors"));
  const Checkpoints checkpoints(file("c.safetensors"), 2);
  for (const int step : {1, 2, 3}) {
    write_checkpoint(file("c.safetensors"), step);
    checkpoints.written(step);
  }
  EXPECT_FALSE(fs::exists(file("c.step00000001.safetensors")));
  EXPECT_EQ(step_of(file("c.step00000002.safetensors")), "2");
  EXPECT_EQ(step_of(file("c.step00000003.safetensors")), "3");
  EXPECT_TRUE(fs::is_symlink(file("c.safetensors")));
}

// What has a number, but was not written by the run, neither goes nor takes the place of what was.
TEST_F(CheckpointFiles, OthersFilesWithNumbersStay) {
  const Checkpoints checkpoints(file("c.safetensors"), 2);
  write(file("c.step1.safetensors"), "notes");
  write(file("c.step00000001.safetensors"), "no checkpoint");
  write(file("c.step00000900.safetensors"), "no checkpoint, and a later step");
  write_checkpoint(file("c.step00000800.safetensors"), 800);
  const std::string left = ".c.step00000007.safetensors.0123456789abcdef.tmp";  // by a process that was killed
  const std::vector<std::string> hidden{".c.steps-analysis.safetensors.tmp",
                                        ".c.step7.safetensors.0123456789abcdef.tmp",
                                        ".c.step00000007.safetensors.notes.tmp",
                                        ".c.step00000007.txt.0123456789abcdef.tmp", ".c.step00000007.safetensors.tmp"};
  for (const std::string& name : hidden) std::ofstream(file(name)) << "notes";
  std::ofstream(file(left)) << "half";
  for (const int step : {10, 20, 30}) {
    write_checkpoint(file("c.safetensors"), step);
    checkpoints.written(step);
  }
  for (const char* name : {"1", "00000001", "00000900", "00000800", "00000020", "00000030"})
    EXPECT_TRUE(fs::exists(file(std::string("c.step") + name + ".safetensors"))) << name;
  EXPECT_FALSE(fs::exists(file("c.step00000010.safetensors")));
  for (const std::string& name : hidden) EXPECT_TRUE(fs::exists(file(name))) << name;
  EXPECT_FALSE(fs::exists(file(left)));
}

// Where the file under a number cannot be a second name of the newest, it is a copy, which must not be there in part.
TEST_F(CheckpointFiles, ACopyIsWholeOrNotThere) {
  const std::string memory = "/dev/shm/" + fs::path(file("")).parent_path().filename().string();
  std::error_code error;
  struct stat here {
  }, there{};
  if (::stat("/dev/shm", &there) != 0 || ::stat(file("").c_str(), &here) != 0 || here.st_dev == there.st_dev ||
      !fs::create_directory(memory, error))
    GTEST_SKIP() << "there are not two file systems here";
  const std::string target = memory + "/c.safetensors", kept = file("c.step00000007.safetensors");
  const std::string whole(3'000'000, 'x');
  write(target, whole);
  fs::create_symlink(target, file("c.safetensors"));
  std::ofstream(file(".c.step00000003.safetensors.0123456789abcdef.tmp")) << "left by a process that was killed";
  const Checkpoints checkpoints(file("c.safetensors"), 2);

  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{2'000'000, old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string said = testing::error_of([&] { checkpoints.written(7); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(said.find("cannot be kept as '" + kept + "'"), std::string::npos) << said;
  EXPECT_FALSE(fs::exists(kept)) << fs::file_size(kept, error) << " bytes";

  checkpoints.written(7);
  EXPECT_TRUE(content(kept) == whole);
  const std::ptrdiff_t files = std::distance(fs::directory_iterator(file("")), fs::directory_iterator());
  EXPECT_EQ(files, 2) << "something is left over";
  fs::remove_all(memory);
}

// What a run has told of, by steps, and of which evaluations.
struct Told {
  std::vector<std::int64_t> steps, evaluations;

  explicit Told(const std::string& path) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const auto entry = nlohmann::json::parse(line);
      steps.push_back(entry.at("step"));
      if (entry.contains("test_loss")) evaluations.push_back(entry.at("step"));
    }
  }
};

// Where a process is killed right after it has written a checkpoint, what was told before must not be lost.
TEST_F(CheckpointFiles, HaveNoStepThatTheMetricsLack) {
  for (std::int64_t killed_at = 1; killed_at < 2 * kStepsAnEpoch; ++killed_at) {
    const RunOptions options{
        .epochs = 2, .checkpoint = file("c"), .checkpoint_every = 1, .resume = "auto", .metrics = file("m.jsonl")};
    std::vector<std::int64_t> ended;
    const auto train = [&](std::int64_t until) {
      Training training(options);
      training.run->set_evaluation(classification(samples()));
      training.run->callbacks().on_epoch_end = [&](std::int64_t epoch) { ended.push_back(epoch); };
      training.run->callbacks().on_step_begin = [&](std::int64_t step) {
        if (step == until) throw std::runtime_error("killed");
      };
      training.run->train();
    };
    EXPECT_THROW(train(killed_at), std::runtime_error);
    const Told before(file("m.jsonl"));
    EXPECT_EQ(static_cast<std::int64_t>(before.steps.size()), killed_at);
    train(-1);
    const Told all(file("m.jsonl"));
    EXPECT_EQ(all.steps, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5, 6, 7})) << killed_at;
    EXPECT_EQ(all.evaluations, (std::vector<std::int64_t>{3, 7})) << killed_at;
    EXPECT_EQ(ended, (std::vector<std::int64_t>{0, 1})) << killed_at;
    for (const char* name : {"c", "m.jsonl"}) fs::remove(file(name));
  }
}

// A signal in an epoch's last step leaves its evaluation to the run that goes on.
TEST_F(CheckpointFiles, TellOfAnEpochsEndThatIsDue) {
  const RunOptions options{.epochs = 2, .checkpoint = file("c"), .resume = "auto", .metrics = file("m.jsonl")};
  std::vector<std::int64_t> ended;
  const auto train = [&](std::int64_t until) {
    Training training(options);
    training.run->set_evaluation(classification(samples()));
    training.run->callbacks().on_epoch_end = [&](std::int64_t epoch) { ended.push_back(epoch); };
    training.run->callbacks().on_step_begin = [&](std::int64_t step) {
      if (step == until) std::raise(SIGTERM);
    };
    return training.run->train().stopped_by;
  };
  EXPECT_EQ(train(kStepsAnEpoch - 1), SIGTERM);
  EXPECT_TRUE(ended.empty());
  EXPECT_EQ(train(kStepsAnEpoch + 1), SIGTERM);
  EXPECT_EQ(train(-1), 0);
  const Told all(file("m.jsonl"));
  EXPECT_EQ(all.steps, (std::vector<std::int64_t>{0, 1, 2, 3, 3, 4, 5, 6, 7}));
  EXPECT_EQ(all.evaluations, (std::vector<std::int64_t>{3, 7}));
  EXPECT_EQ(ended, (std::vector<std::int64_t>{0, 1}));
}

// The state of a loss scale is refused with the name of the file, also where it is a number.
TEST_F(CheckpointFiles, WithADamagedLossScaleAreNamed) {
  const RunOptions options{.epochs = 1, .amp = kFloat16, .checkpoint = file("c")};
  Training(options).run->train();
  const std::pair<const char*, const char*> cases[] = {{"loss_scale", "-1"},
                                                       {"loss_scale", "inf"},
                                                       {"loss_scale", "one"},
                                                       {"loss_scale_steps", "1e300"},
                                                       {"loss_scale_steps", "-1"}};
  for (const auto& [key, value] : cases) {
    const nn::SafetensorsFile good(file("c"));
    std::vector<nn::NamedTensor> tensors;
    for (const nn::SafetensorsEntry& entry : good.entries()) tensors.push_back({entry.name, good.read(entry.name)});
    nn::Metadata metadata = good.metadata();
    ASSERT_EQ(metadata.count(std::string("extra.") + key), 1u);
    metadata[std::string("extra.") + key] = value;
    nn::save_safetensors(tensors, file("damaged"), metadata);
    RunOptions resumed = options;
    resumed.checkpoint.clear();
    resumed.resume = file("damaged");
    const std::string error = testing::error_of([&] { Training(resumed).run->train(); });
    EXPECT_NE(error.find("'" + file("damaged") + "' is damaged: expected a positive loss_scale"), std::string::npos)
        << error;
    EXPECT_NE(error.find(std::string("'") + value + "'"), std::string::npos) << error;
  }
}

// The same files as ever; only that the run does not wait for them, and hears of a failure when it saves again.
TEST_F(CheckpointFiles, MayBeWrittenInTheBackground) {
  const RunOptions options{.epochs = 3,
                           .checkpoint = file("c.safetensors"),
                           .checkpoint_every = 2,
                           .checkpoint_async = true,
                           .keep_checkpoints = 3};
  const std::string whole = Training(RunOptions{.epochs = 3}).run->train().weights_sha256;
  EXPECT_EQ(Training(options).run->train().weights_sha256, whole);
  for (const int step : {2, 4, 6, 8, 10, 12})
    EXPECT_EQ(fs::exists(file(fmt::format("c.step{:08}.safetensors", step))), step > 6) << step;
  for (const int step : {8, 10}) {
    const std::string from = file(fmt::format("c.step{:08}.safetensors", step));
    EXPECT_EQ(nn::read_training_state(from).step, step);
    EXPECT_EQ(Training(RunOptions{.epochs = 3, .resume = from}).run->train().weights_sha256, whole);
  }

  fs::create_directory(file("d"));
  RunOptions other = options;
  other.checkpoint = file("d/c.safetensors");
  other.keep_checkpoints = 9;
  Training training(other);
  training.run->callbacks().on_save = [&](const nn::TrainingState& state) {  // the one before is done
    if (state.step == 6) fs::rename(file("d"), file("away"));
    if (state.step == 8) fs::rename(file("away"), file("d"));
  };
  struct Listener : Sink {
    explicit Listener(std::string& said) : said(said) {}
    void message(const std::string& text) override { said += text + "\n"; }
    std::string& said;
  };
  std::string said;
  training.run->add_sink(std::make_unique<Listener>(said));
  EXPECT_EQ(training.run->train().weights_sha256, whole);
  EXPECT_NE(said.find("at step 6: "), std::string::npos) << said;
  EXPECT_NE(said.find("No such file or directory; the training goes on"), std::string::npos) << said;
  EXPECT_EQ(nn::read_training_state(file("d/c.safetensors")).step, 12);
  for (const int step : {2, 4, 6, 8, 10, 12})
    EXPECT_EQ(fs::exists(file(fmt::format("d/c.step{:08}.safetensors", step))), step != 6) << step;
}

}  // namespace
}  // namespace lockstep::training
