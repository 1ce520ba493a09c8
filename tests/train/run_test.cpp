// training::Run on a small network, in this process.

#include "lockstep/train/run.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/random.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "tests/support/temporary_path.h"
#include "tests/train/training.h"

namespace lockstep::training {
namespace {

namespace fs = std::filesystem;

class TrainRun : public ::testing::Test {
 protected:
  TrainRun() { fs::create_directories(folder_.text()); }
  std::string file(const std::string& name) const { return folder_.text() + "/" + name; }

  /// The weights' hash after a run to its end.
  static std::string weights(const RunOptions& options) { return Training(options).run->train().weights_sha256; }

  /// Runs to `steps` and leaves a checkpoint.
  void leave_checkpoint(const std::string& name, std::int64_t steps) const {
    Training(RunOptions{.epochs = 3, .max_steps = steps, .checkpoint = file(name)}).run->train();
  }

  template <typename Body>
  static std::string error_of(Body&& body) {
    try {
      body();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  testing::TemporaryPath folder_;
};

TEST_F(TrainRun, ResumedRunsEndWithTheBitsOfUndisturbedOnes) {
  const std::string whole = weights({.epochs = 3});
  for (const std::int64_t steps : {3, 4, 11}) {  // in the middle, and at the end of an epoch
    leave_checkpoint("c.safetensors", steps);
    Training rest({.epochs = 3, .checkpoint = file("c.safetensors"), .resume = "auto"});
    std::int64_t resumed_at = -1;
    rest.run->callbacks().on_resume = [&](const nn::TrainingState& state) { resumed_at = state.step; };
    const Result result = rest.run->train();
    EXPECT_EQ(resumed_at, steps);
    EXPECT_EQ(result.steps, 3 * kStepsAnEpoch - steps);
    EXPECT_EQ(result.weights_sha256, whole);
    fs::remove(file("c.safetensors"));
  }
}

TEST_F(TrainRun, AHashTraceThatCannotBeWrittenEndsNoTraining) {
  RunOptions options{.epochs = 2, .checkpoint = file("c.safetensors"), .trace_hashes = "/dev/full"};
  const std::string error = error_of([&] { Training(options).run->train(); });
  EXPECT_NE(error.find("the hash trace '/dev/full' could not be written"), std::string::npos) << error;
  EXPECT_EQ(nn::read_training_state(file("c.safetensors")).step, 2 * kStepsAnEpoch);
  options.trace_hashes.clear();
  options.resume = "auto";
  EXPECT_EQ(weights(options), weights({.epochs = 2}));
}

TEST_F(TrainRun, MixedPrecisionResumesWithItsLossScale) {
  const std::string whole = weights({.epochs = 2, .amp = kFloat16});
  EXPECT_NE(whole, weights({.epochs = 2}));
  Training(RunOptions{.epochs = 2, .max_steps = 3, .amp = kFloat16, .checkpoint = file("c")}).run->train();
  EXPECT_EQ(weights({.epochs = 2, .amp = kFloat16, .resume = file("c")}), whole);
  EXPECT_NE(error_of([&] { weights({.epochs = 2, .resume = file("c")}); }).find("was trained with amp fp16, not off"),
            std::string::npos);
}

TEST_F(TrainRun, DoesNotGoOnWithOtherData) {
  leave_checkpoint("c", 3);
  Training rest({.epochs = 3, .resume = file("c")});
  const auto error_with = [&](std::int64_t count) {
    const data::DataLoader other(std::make_shared<data::TensorDataset>(ones({count, 6}), ones({count})),
                                 {.batch_size = 8, .seed = 3});
    lockstep::training::Run run(*rest.step, *rest.optimizer, other,
                                [](nn::Module&, const data::Batch& part) { return part.x.sum(); },
                                {.epochs = 3, .resume = file("c"), .progress = Progress::none});
    return error_of([&] { run.train(); });
  };
  EXPECT_NE(error_with(29).find("was trained with samples in the data set 30, not 29"), std::string::npos);
  EXPECT_NE(error_with(30).find("was trained with samples, by checksum x float32 [30, 6] "), std::string::npos)
      << error_with(30);
}

// Each would overwrite what the other has reached.
TEST_F(TrainRun, TwoRunsDoNotShareACheckpoint) {
  const RunOptions options{.epochs = 1, .checkpoint = file("c.safetensors")};
  fs::create_symlink("c.safetensors", file("link"));
  Training first(options);
  std::string error, through_link;
  first.run->callbacks().on_step_end = [&](std::int64_t step, const Tensor&) {
    if (step != 1) return;
    error = error_of([&] { Training(options).run->train(); });
    through_link = error_of([&] { Training(RunOptions{.epochs = 1, .checkpoint = file("link")}).run->train(); });
  };
  first.run->train();
  EXPECT_NE(error.find("c.safetensors' is the checkpoint of another training, which is still running (process " +
                       std::to_string(::getpid()) + " on "),
            std::string::npos)
      << error;
  EXPECT_NE(through_link.find("is the checkpoint of another training"), std::string::npos) << through_link;
  EXPECT_EQ(nn::read_training_state(file("c.safetensors")).step, kStepsAnEpoch);
  EXPECT_FALSE(fs::exists(file(".c.safetensors.lock")));
  Training(RunOptions{.epochs = 2, .checkpoint = file("c.safetensors"), .resume = "auto"}).run->train();
}

TEST_F(TrainRun, TwoRunsDoNotShareMetricsOrWeights) {
  const RunOptions options{.epochs = 1, .save = file("w"), .metrics = file("m")};
  Training first(options);
  std::string of_metrics, of_weights;
  first.run->callbacks().on_step_end = [&](std::int64_t step, const Tensor&) {
    if (step != 1) return;
    of_metrics = error_of([&] { Training(RunOptions{.epochs = 1, .metrics = file("m")}).run->train(); });
    of_weights = error_of([&] { Training(RunOptions{.epochs = 1, .save = file("w")}).run->train(); });
  };
  first.run->train();
  EXPECT_NE(of_metrics.find("m' is written by another training, which is still running"), std::string::npos)
      << of_metrics;
  EXPECT_NE(of_weights.find("w' is the file of the weights of another training"), std::string::npos) << of_weights;
  std::ifstream metrics(file("m"));
  int lines = 0;
  for (std::string line; std::getline(metrics, line);) ++lines;
  EXPECT_EQ(lines, kStepsAnEpoch);
  Training(options).run->train();  // one after the other they may
}

// A crashed disk's newest file may be whole but for some bits.
TEST_F(TrainRun, PassesOverADamagedCheckpoint) {
  const std::string path = file("c.safetensors");
  Training(RunOptions{.epochs = 1, .checkpoint = path, .checkpoint_every = 2, .keep_checkpoints = 2}).run->train();
  const nn::SafetensorsFile whole(path);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary)
      .seekp(static_cast<std::streamoff>(whole.entries().back().offset))
      .put('\x55');
  Training again({.epochs = 1, .checkpoint = path, .keep_checkpoints = 2, .resume = "auto"});
  std::int64_t resumed_at = -1;
  again.run->callbacks().on_resume = [&](const nn::TrainingState& state) { resumed_at = state.step; };
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(again.run->train().steps, kStepsAnEpoch - 2);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("passing over what cannot be read as a checkpoint: '" + path + "' ("), std::string::npos) << said;
  EXPECT_EQ(resumed_at, 2);
}

TEST_F(TrainRun, KeepsTheLastCheckpoints) {
  const std::string path = file("c.safetensors");
  Training(RunOptions{.epochs = 3, .checkpoint = path, .checkpoint_every = 2, .keep_checkpoints = 3}).run->train();
  for (int step = 2; step <= 12; step += 2)
    EXPECT_EQ(fs::exists(file("c.step" + std::string(step < 10 ? "0000000" : "000000") + std::to_string(step) +
                              ".safetensors")),
              step > 6)
        << step;
  EXPECT_EQ(nn::read_training_state(path).step, 12);
  EXPECT_EQ(nn::read_training_state(file("c.step00000008.safetensors")).step, 8);

  // With the newest damaged, "auto" takes the one before.
  for (const char* damaged : {"c.safetensors", "c.step00000012.safetensors"}) {
    fs::remove(file(damaged));
    std::ofstream(file(damaged)) << "no checkpoint";
  }
  Training again({.epochs = 3, .checkpoint = path, .keep_checkpoints = 3, .resume = "auto"});
  EXPECT_EQ(again.run->train().steps, 2);
}

TEST_F(TrainRun, SavesByTheClock) {
  Training training({.checkpoint = file("c"), .checkpoint_minutes = 1e-9});
  std::vector<std::int64_t> saved;
  training.run->callbacks().on_save = [&](const nn::TrainingState& state) { saved.push_back(state.step); };
  training.run->train();
  EXPECT_EQ(saved, (std::vector<std::int64_t>{1, 2, 3, 4}));
}

TEST_F(TrainRun, SigtermEndsTheStepSavesAndSaysSo) {
  const std::string whole = weights({.epochs = 3});
  struct sigaction before {
  }, now{};
  ::sigaction(SIGTERM, nullptr, &before);  // the default, or what ranks in this process have set
  Training training({.epochs = 3, .checkpoint = file("c"), .save = file("w")});
  training.run->callbacks().on_step_begin = [](std::int64_t step) {
    if (step == 5) ::raise(SIGTERM);
  };
  const Result result = training.run->train();
  EXPECT_EQ(result.exit_status(), 128 + SIGTERM);
  EXPECT_EQ(result.steps, 6);
  EXPECT_EQ(nn::read_training_state(file("c")).step, 6);
  EXPECT_FALSE(fs::exists(file("w"))) << "the weights of a training that is not at its end";
  EXPECT_EQ(weights({.epochs = 3, .checkpoint = file("c"), .resume = "auto"}), whole);
  ::sigaction(SIGTERM, nullptr, &now);
  EXPECT_EQ(now.sa_handler, before.sa_handler);
}

TEST_F(TrainRun, ResumesByItselfUnderAnElasticLauncher) {
  const auto resumed = [&] {
    return Training(RunOptions{.epochs = 3, .checkpoint = file("c")}).run->train().steps < 3 * kStepsAnEpoch;
  };
  for (const char* variable : {"LOCKSTEP_ELASTIC", "TORCHELASTIC_MAX_RESTARTS"}) {
    leave_checkpoint("c", 5);
    ::setenv(variable, "0", 1);
    EXPECT_NE(error_of(resumed), "");
    ::setenv(variable, "2", 1);
    EXPECT_TRUE(resumed());
    ::unsetenv(variable);
    fs::remove(file("c"));
  }
  // A worker that was started again goes on from its own checkpoint, not from where the first one began.
  leave_checkpoint("first", 2);
  ::setenv("LOCKSTEP_JOB_ID", "this job", 1);
  leave_checkpoint("c", 5);
  ::setenv("LOCKSTEP_RESTART_COUNT", "1", 1);
  EXPECT_EQ(Training(RunOptions{.epochs = 3, .checkpoint = file("c"), .resume = file("first")}).run->train().steps, 7);
  ::unsetenv("LOCKSTEP_RESTART_COUNT");
  ::unsetenv("LOCKSTEP_JOB_ID");
}

TEST_F(TrainRun, NeverOverwritesWhatItDidNotGoOnFrom) {
  leave_checkpoint("early", 2);
  leave_checkpoint("c", 5);
  for (const std::string& resume : {std::string(), std::string("none"), file("early")}) {
    const std::string error = error_of([&] { weights({.epochs = 3, .checkpoint = file("c"), .resume = resume}); });
    EXPECT_NE(error.find("is of step 5, later than step " + std::string(resume == file("early") ? "2" : "0")),
              std::string::npos)
        << error;
  }
  EXPECT_EQ(nn::read_training_state(file("c")).step, 5);

  std::ofstream(file("text")) << "a letter";
  EXPECT_NE(error_of([&] { weights({.checkpoint = file("text")}); }).find("cannot be read as a checkpoint"),
            std::string::npos);
}

TEST_F(TrainRun, TriesEveryOutputBeforeTheFirstStep) {
  const std::string nowhere = file("no-such-folder/x");
  ASSERT_EQ(::mkfifo(file("pipe").c_str(), 0600), 0);  // nobody reads it
  for (const RunOptions& options :
       {RunOptions{.checkpoint = nowhere}, RunOptions{.save = nowhere}, RunOptions{.metrics = nowhere},
        RunOptions{.trace_hashes = nowhere}, RunOptions{.profile = nowhere}, RunOptions{.save = folder_.text()},
        RunOptions{.metrics = file("pipe")}, RunOptions{.profile = file("pipe")}}) {
    Training training(options);
    int steps = 0;
    training.run->callbacks().on_step_begin = [&](std::int64_t) { ++steps; };
    const std::string error = error_of([&] { training.run->train(); });
    EXPECT_NE(error.find("nothing has been computed yet"), std::string::npos) << error;
    EXPECT_EQ(steps, 0);
  }
  EXPECT_TRUE(fs::is_fifo(file("pipe")));
  fs::remove(file("pipe"));
  EXPECT_TRUE(fs::is_empty(folder_.text()));
}

TEST_F(TrainRun, WritesElsewhereWhatCannotBeWrittenAtTheEnd) {
  // A folder has taken the name of the weights: they go beside it.
  Training training({.save = file("w.safetensors")});
  training.run->callbacks().on_epoch_end = [&](std::int64_t) { fs::create_directory(file("w.safetensors")); };
  const std::string beside = error_of([&] { training.run->train(); });
  EXPECT_NE(beside.find("is in '" + file("w.safetensors.rescued")), std::string::npos) << beside;
  EXPECT_TRUE(fs::exists(file("w.safetensors.rescued")));

  // The whole folder is gone: the checkpoint goes into the working folder.
  fs::create_directories(file("gone"));
  fs::create_directories(file("here"));
  const fs::path before = fs::current_path();
  fs::current_path(file("here"));
  Training lost({.checkpoint = file("gone/c"), .checkpoint_every = 3});
  int steps = 0;
  lost.run->callbacks().on_step_begin = [&](std::int64_t step) {
    if (step == 2) fs::remove_all(file("gone"));
    ++steps;
  };
  const std::string elsewhere = error_of([&] { lost.run->train(); });
  fs::current_path(before);
  EXPECT_EQ(steps, kStepsAnEpoch) << "a checkpoint in between that fails does not end the training";
  EXPECT_NE(elsewhere.find("the checkpoint is in 'c.rescued'"), std::string::npos) << elsewhere;
  EXPECT_EQ(nn::read_training_state(file("here/c.rescued")).step, kStepsAnEpoch);
}

TEST_F(TrainRun, CallsBackInOrder) {
  std::string calls;
  Training training({.max_steps = 2, .checkpoint = file("c"), .checkpoint_every = 1});
  Callbacks& on = training.run->callbacks();
  on.on_epoch_begin = [&](std::int64_t epoch) { calls += "epoch " + std::to_string(epoch) + ": "; };
  on.on_step_begin = [&](std::int64_t step) { calls += std::to_string(step) + " begin, "; };
  on.on_gradients = [&](std::int64_t) { calls += "gradients, "; };
  on.on_step_end = [&](std::int64_t, const Tensor& loss) {
    EXPECT_GT(loss.item<double>(), 0.0);
    calls += "end, ";
  };
  on.on_save = [&](nn::TrainingState& state) {
    state.extra["mine"] = "kept";
    calls += "save " + std::to_string(state.step) + "; ";
  };
  on.on_evaluation = [&](std::int64_t, const Values& values) { calls += values.front().first + ", "; };
  on.on_epoch_end = [&](std::int64_t) { calls += "epoch end, "; };
  training.run->set_evaluation(classification(samples()));
  const Result result = training.run->train();
  EXPECT_EQ(calls,
            "epoch 0: 0 begin, gradients, end, save 1; 1 begin, gradients, end, test accuracy, epoch end, save 2; ");
  EXPECT_EQ(nn::read_training_state(file("c")).extra.at("mine"), "kept");
  EXPECT_EQ(result.weights_sha256, weights({.max_steps = 2})) << "callbacks change no bit";
}

TEST_F(TrainRun, ACallbackCanEndIt) {
  Training training({.epochs = 3});
  training.run->callbacks().on_step_end = [&](std::int64_t step, const Tensor&) {
    if (step == 5) training.run->stop();
  };
  const Result result = training.run->train();
  EXPECT_EQ(result.steps, 6);
  EXPECT_EQ(result.exit_status(), 0);
}

struct Listener final : Sink {
  explicit Listener(std::string& heard) : heard(heard) {}
  void begin(const RunDescription& run) override { heard += "of " + std::to_string(run.total_steps) + "; "; }
  void step(const StepReport& report) override {
    EXPECT_DOUBLE_EQ(report.learning_rate, 0.1 / static_cast<double>(report.step + 1));
    heard += std::to_string(report.step) + " x" + std::to_string(report.samples) + "; ";
  }
  void evaluation(std::int64_t step, std::int64_t, const Values&) override {
    heard += "evaluated after " + std::to_string(step) + "; ";
  }
  void end(const Result& result) override { heard += "end " + std::to_string(result.steps); }
  std::string& heard;
};

TEST_F(TrainRun, SinksHearScheduleStepsAndEvaluations) {
  std::string heard;
  Training training({.unit = "points", .metrics = file("m.jsonl")});
  training.run->add_sink(std::make_unique<Listener>(heard));
  training.run->set_evaluation(classification(samples()));
  training.run->train();
  EXPECT_EQ(heard, "of 4; 0 x8; 1 x8; 2 x8; 3 x6; evaluated after 3; end 4");

  std::ifstream in(file("m.jsonl"));
  std::string line;
  for (std::int64_t step = 0; step < kStepsAnEpoch; ++step) {
    ASSERT_TRUE(std::getline(in, line));
    const auto entry = nlohmann::json::parse(line);
    EXPECT_EQ(entry.at("step"), step);
    EXPECT_EQ(std::strtod(entry.at("loss_hex").get<std::string>().c_str(), nullptr), entry.at("loss").get<double>());
    EXPECT_TRUE(entry.contains("points_per_s"));
    EXPECT_EQ(entry.contains("test_accuracy"), step == kStepsAnEpoch - 1);
  }
  EXPECT_FALSE(std::getline(in, line));
}

TEST_F(TrainRun, RefusesOptionsOutOfRange) {
  for (const RunOptions& options :
       {RunOptions{.epochs = 0}, RunOptions{.epochs = std::numeric_limits<std::int64_t>::max(), .max_steps = 5},
        RunOptions{.max_steps = -1}, RunOptions{.resume = "auto"}, RunOptions{.amp = kFloat64},
        RunOptions{.checkpoint_every = 1}, RunOptions{.checkpoint = file("c"), .keep_checkpoints = 0}})
    EXPECT_NE(error_of([&] { Training training(options); }), "");
  Training training({});
  training.run->train();
  EXPECT_NE(error_of([&] { training.run->train(); }).find("was called twice"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::training
