// What programs do to a training that its authors would not: they change the working folder, have nothing to train on,
// call what they measure as the training does, fork, are started with signals blocked, and let ranks come apart.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/autograd/grad_mode.h"
#include "lockstep/nn/checkpoint.h"
#include "tests/distributed/ranks.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"
#include "tests/train/training.h"

namespace lockstep::training {
namespace {

namespace fs = std::filesystem;
using testing::error_of;

class RunSurprises : public ::testing::Test {
 protected:
  RunSurprises() { fs::create_directories(folder_.text()); }
  std::string file(const std::string& name) const { return folder_.text() + "/" + name; }
  static std::int64_t step_of(const std::string& path) { return nn::read_training_state(path).step; }
  /// On each of two ranks, in threads: f(rank, a run of a few steps).
  static void on_two_ranks(const RunOptions& options, const std::function<void(int, training::Run&)>& f) {
    testing::run_ranks(
        2, testing::Link::in_process,
        [&](distributed::ProcessGroup& group) {
          manual_seed(3);
          Net net;
          distributed::TrainingStep step(net, {.group = group.shared_from_this()});
          optim::SGD optimizer(net.parameters(), optim::SGDOptions{.lr = 0.1});
          const data::DataLoader loader(samples(), {.batch_size = 8, .rank = group.rank(), .world_size = 2});
          training::Run run(
              step, optimizer, loader,
              [](nn::Module& module, const data::Batch& part) { return cross_entropy(module.forward(part.x), part.y); },
              options);
          f(group.rank(), run);
        },
        std::chrono::milliseconds(2'000));
  }

  testing::TemporaryPath folder_;
};

TEST_F(RunSurprises, FilesStayWhereTheyWereTried) {
  const fs::path before = fs::current_path();
  fs::create_directories(file("here"));
  fs::create_directories(file("there"));
  fs::current_path(file("there"));
  Training({.max_steps = 2, .checkpoint = "c"}).run->train();  // of another training
  fs::current_path(file("here"));
  Training training({.epochs = 2,
                     .checkpoint = "c",
                     .checkpoint_every = 3,
                     .keep_checkpoints = 2,
                     .save = "w",
                     .metrics = "m",
                     .trace_hashes = "h",
                     .profile = "p.json"});
  training.run->callbacks().on_step_begin = [&](std::int64_t step) {
    if (step == 4) fs::current_path(file("there"));
  };
  training.run->train();
  fs::current_path(before);
  EXPECT_EQ(step_of(file("there/c")), 2);
  EXPECT_EQ(std::distance(fs::directory_iterator(file("there")), fs::directory_iterator()), 1);
  EXPECT_EQ(step_of(file("here/c")), 8);
  for (const char* name : {"w", "m", "h", "c.step00000006"}) EXPECT_TRUE(fs::exists(file("here/") + name)) << name;
}

TEST_F(RunSurprises, NothingToTrainOnIsAnError) {
  for (const bool saves : {false, true}) {
    Training training({.checkpoint = saves ? file("c") : ""});
    training.loader.emplace(std::make_shared<data::TensorDataset>(zeros({0, 6}), zeros({0}, {.dtype = kInt64})),
                            data::DataLoaderOptions{.batch_size = 8});
    const std::string error = error_of([&] {
      training::Run run(*training.step, *training.optimizer, *training.loader,
                        [](nn::Module& net, const data::Batch& part) { return net.forward(part.x).sum(); },
                        {.checkpoint = saves ? file("c") : "", .progress = Progress::none});
    });
    EXPECT_NE(error.find("an epoch has no batch: the data set has 0 sample(s)"), std::string::npos) << error;
  }
  EXPECT_FALSE(fs::exists(file("c")));
}

TEST_F(RunSurprises, WhatIsMeasuredTakesNoStepsName) {
  Training training({.metrics = file("m.jsonl")});
  const auto sums = [](nn::Module&, const data::Batch& batch) {
    const auto count = static_cast<double>(batch.size());
    return std::vector<double>{7.0 * count, 8.0 * count, 0.5 * count};
  };
  const Evaluation evaluation{.dataset = samples(), .names = {"loss", "step", "accuracy"}, .sums = sums};
  training.run->set_evaluation(evaluation);
  training.run->train();
  std::ifstream in(file("m.jsonl"));
  nlohmann::json last;
  for (std::string line; std::getline(in, line);) last = nlohmann::json::parse(line);
  EXPECT_EQ(last.at("step"), kStepsAnEpoch - 1);
  EXPECT_NE(last.at("loss"), 7.0);
  EXPECT_EQ(last.at("evaluation_loss"), 7.0);
  EXPECT_EQ(last.at("evaluation_step"), 8.0);
  EXPECT_EQ(last.at("accuracy"), 0.5);
}

TEST_F(RunSurprises, AnotherLearningRateIsTold) {
  Training stopped({.epochs = 3, .checkpoint = file("e")});
  stopped.run->callbacks().on_step_end = [&](std::int64_t step, const Tensor&) {
    if (step == 1) stopped.run->stop();
  };
  stopped.run->train();
  for (const double rate : {0.1, 0.2}) {
    fs::copy_file(file("e"), file("f"), fs::copy_options::overwrite_existing);
    Training training({.epochs = 3, .checkpoint = file("f"), .resume = "auto"});
    training.run->set_schedule([rate](std::int64_t n) { return rate / static_cast<double>(n + 1); });
    ::testing::internal::CaptureStderr();
    training.run->train();
    const std::string text = ::testing::internal::GetCapturedStderr();
    EXPECT_EQ(text.find("it will end with other weights than an undisturbed one") != std::string::npos, rate != 0.1)
        << text;
  }
}

TEST_F(RunSurprises, ALossThatIsNoNumberIsToldOnce) {
  for (const double rate : {0.1, 1e30}) {
    Training training({.epochs = 2});
    training.run->set_schedule([rate](std::int64_t) { return rate; });
    ::testing::internal::CaptureStderr();
    training.run->train();
    const std::string text = ::testing::internal::GetCapturedStderr();
    const std::size_t first = text.find("[run] the loss of step ");
    EXPECT_EQ(first != std::string::npos, rate != 0.1) << text;
    EXPECT_EQ(text.rfind("[run] the loss of step "), first) << text;
  }
}

/// Whose content is no text.
class Unwritten final : public data::Dataset {
 public:
  std::int64_t size() const override { return samples()->size(); }
  data::Batch get_batch(std::span<const std::int64_t> indices) const override { return samples()->get_batch(indices); }
  std::string content() const override { return "caf\xe9"; }
};

TEST_F(RunSurprises, ContentThatIsNoTextIsWritten) {
  for (int i = 0; i < 2; ++i) {
    Training training({.checkpoint = file("c"), .resume = "auto"});
    const data::DataLoader loader(std::make_shared<Unwritten>(), {.batch_size = 8, .seed = 3});
    training::Run run(
        *training.step, *training.optimizer, loader,
        [](nn::Module& net, const data::Batch& part) { return cross_entropy(net.forward(part.x), part.y); },
        {.epochs = i + 1, .checkpoint = file("c"), .resume = "auto", .progress = Progress::none});
    EXPECT_EQ(run.train().steps, kStepsAnEpoch);
  }
}

TEST_F(RunSurprises, NamesOfFoldersAreNoFiles) {
  for (const RunOptions& options : {RunOptions{.save = file("new/")}, RunOptions{.checkpoint = file("new/")},
                                    RunOptions{.profile = file("new/")}, RunOptions{.metrics = file("new/")}}) {
    const std::string error = error_of([&] { Training(options).run->train(); });
    EXPECT_NE(error.find("ends in a slash; expected the name of a file; nothing has been computed yet"),
              std::string::npos)
        << error;
  }
}

TEST_F(RunSurprises, TheLimitOnFilesSizesIsLookedAtFirst) {
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  rlimit small = before;
  small.rlim_cur = 256;
  ::setrlimit(RLIMIT_FSIZE, &small);
  const std::string error = error_of([&] { Training({.save = file("w")}).run->train(); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(error.find("ulimit -f"), std::string::npos) << error;
  EXPECT_NE(error.find("nothing has been computed yet"), std::string::npos) << error;
}

TEST_F(RunSurprises, SigtermComesThroughWhereItWasBlocked) {
  sigset_t stop, before, after;
  ::sigemptyset(&stop);
  ::sigaddset(&stop, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &stop, &before);
  Training training({.epochs = 3, .checkpoint = file("c")});
  training.run->callbacks().on_step_begin = [](std::int64_t step) {
    if (step == 2) ::raise(SIGTERM);
  };
  const Result result = training.run->train();
  ::pthread_sigmask(SIG_SETMASK, &before, &after);
  EXPECT_EQ(result.exit_status(), 128 + SIGTERM);
  EXPECT_EQ(step_of(file("c")), 3);
  EXPECT_EQ(::sigismember(&after, SIGTERM), 1) << "the program's own mask comes back";
}

TEST_F(RunSurprises, AForkedChildEndsBySigtermAsEver) {
  Training training({.checkpoint = file("c")});
  int status = 0;
  training.run->callbacks().on_step_begin = [&](std::int64_t step) {
    if (step != 1) return;
    const pid_t child = ::fork();
    if (child == 0)
      for (;;) ::pause();
    ::usleep(20'000);
    ::kill(child, SIGTERM);
    for (int i = 0; i < 500 && ::waitpid(child, &status, WNOHANG) == 0; ++i) ::usleep(10'000);
    ::kill(child, SIGKILL);
  };
  EXPECT_EQ(training.run->train().exit_status(), 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
}

/// Of a data set's samples, in another order on another rank.
class Biased final : public data::Sampler {
 public:
  Biased(std::int64_t count, std::int64_t first) : count_(count), first_(first) {}
  std::int64_t size() const override { return count_; }
  std::vector<std::int64_t> indices(std::uint64_t) const override {
    std::vector<std::int64_t> all;
    for (std::int64_t i = 0; i < count_; ++i) all.push_back((first_ + i) % count_);
    return all;
  }

 private:
  std::int64_t count_, first_;
};

TEST_F(RunSurprises, ModulesOfEachRankAreNotSavedFromRank0) {
  testing::run_ranks(2, testing::Link::in_process, [&](distributed::ProcessGroup& group) {
    Net net;
    distributed::TrainingStep step(net, {.group = group.shared_from_this(), .ignored_modules = {"fc2"}});
    optim::SGD optimizer(net.parameters(), optim::SGDOptions{.lr = 0.1});
    const data::DataLoader loader(samples(), {.batch_size = 8});
    const auto train = [&](RunOptions options) {
      options.progress = Progress::none;
      const auto loss = [](nn::Module& module, const data::Batch& part) {
        return cross_entropy(module.forward(part.x), part.y);
      };
      training::Run(step, optimizer, loader, loss, options).train();
    };
    train({.max_steps = 1});
    for (const RunOptions& options :
         {RunOptions{.checkpoint = file("c")}, RunOptions{.save = file("w")}, RunOptions{.max_grad_norm = 1.0}})
      EXPECT_NE(error_of([&] { train(options); }).find("module 'fc2' is each rank's own"), std::string::npos);
  });
}

// What a callback, a sampler or a broken memory may do to one rank.
TEST_F(RunSurprises, ARankThatStopsAloneIsNamedWithTheCall) {
  for (const bool alone : {true, false}) {
    std::array<std::string, 2> found;
    on_two_ranks({.epochs = 2, .progress = Progress::none}, [&](int rank, training::Run& run) {
      run.callbacks().on_step_end = [&](std::int64_t number, const Tensor&) {
        if (number == 1 && (rank == 0 || !alone)) run.stop();
      };
      try {
        EXPECT_EQ(run.train().steps, 2);
      } catch (const Error& error) {
        found[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    for (const std::string& error : found) {
      EXPECT_EQ(error.find("run.stop(), which every rank must call") != std::string::npos, alone) << error;
      EXPECT_EQ(error.find("mismatched collectives: rank 1 called all_reduce") != std::string::npos, alone) << error;
      EXPECT_EQ(error.empty(), !alone) << error;
    }
  }
}

TEST_F(RunSurprises, RanksThatComeApartAreTold) {
  const auto errors = [&](std::int64_t first_of_rank1, bool meddles) {
    std::array<std::string, 2> found;
    testing::run_ranks(2, testing::Link::in_process, [&](distributed::ProcessGroup& group) {
      const int rank = group.rank();
      manual_seed(3);
      Net net;
      distributed::TrainingStep step(net, {.group = group.shared_from_this(), .logical_shards = 4});
      optim::SGD optimizer(net.parameters(), optim::SGDOptions{.lr = 0.1});
      const data::DataLoader loader(samples(),
                                    {.batch_size = 8,
                                     .rank = rank,
                                     .world_size = 2,
                                     .logical_shards = 4,
                                     .sampler = std::make_shared<Biased>(30, rank == 1 ? first_of_rank1 : 0)});
      training::Run run(
          step, optimizer, loader,
          [](nn::Module& module, const data::Batch& part) { return cross_entropy(module.forward(part.x), part.y); },
          {.epochs = 2,
           .logical_shards = 4,
           .checkpoint = file("c"),
           .checkpoint_every = 3,
           .progress = Progress::none});
      run.callbacks().on_step_end = [&](std::int64_t number, const Tensor&) {
        if (rank == 1 && number == 3 && meddles) {
          const NoGradGuard values_only;
          net.fc2.bias.add_(1e-6);
        }
      };
      try {
        run.train();
      } catch (const Error& error) {
        found[static_cast<std::size_t>(rank)] = error.what();
      }
    });
    return found;
  };
  for (const std::string& error : errors(0, false)) EXPECT_EQ(error, "");
  EXPECT_EQ(step_of(file("c")), 8);
  fs::remove(file("c"));
  for (const std::string& error : errors(0, true))
    EXPECT_NE(error.find("after step 6 the weights of rank(s) 1 are not those of rank 0"), std::string::npos) << error;
  EXPECT_EQ(step_of(file("c")), 3) << "the last checkpoint before stays";
  fs::remove(file("c"));
  for (const std::string& error : errors(5, false))
    EXPECT_NE(error.find("the sampler gives rank(s) 1 another order of epoch 0"), std::string::npos) << error;
}

TEST_F(RunSurprises, WhatRank0CannotWriteEndsNoOtherRank) {
  for (const bool async : {false, true}) {
    testing::run_ranks(2, testing::Link::in_process, [&](distributed::ProcessGroup& group) {
      manual_seed(3);
      Net net;
      distributed::TrainingStep step(net, {.group = group.shared_from_this()});
      optim::SGD optimizer(net.parameters(), optim::SGDOptions{.lr = 0.1});
      const data::DataLoader loader(samples(), {.batch_size = 8, .rank = group.rank(), .world_size = 2});
      const auto loss = [](nn::Module& module, const data::Batch& part) {
        return cross_entropy(module.forward(part.x), part.y);
      };
      const auto train = [&] {
        training::Run run(step, optimizer, loader, loss,
                          {.checkpoint = file("c"),
                           .checkpoint_every = 2,
                           .checkpoint_async = async,
                           .resume = "none",
                           .progress = Progress::none});
        run.callbacks().on_epoch_end = [&](std::int64_t) {
          if (group.rank() != 0) return;
          // A folder takes the name of the checkpoint that was written before, perhaps in the background.
          for (std::error_code error; fs::rename(file("c"), file("before"), error), error;) std::this_thread::yield();
          fs::create_directory(file("c"));
        };
        run.train();
      };
      EXPECT_THROW(train(), UnwrittenError);
      EXPECT_FALSE(group.failed()) << async;
    });
    fs::remove_all(folder_.text());
    fs::create_directories(folder_.text());
  }
}

// What rank 0 writes for all, and fails to, is rank 0's to tell; what a program's own rank throws is that rank's.
TEST_F(RunSurprises, WhatAnotherRankCannotWriteIsItsError) {
  std::array<std::string, 2> found;
  on_two_ranks({.progress = Progress::none}, [&](int rank, training::Run& run) {
    try {
      run.train_and_write([&] {
        if (rank == 1) throw UnwrittenError("the program's own file could not be written");
      });
    } catch (const UnwrittenError& error) {
      found[static_cast<std::size_t>(rank)] = error.what();
    }
  });
  EXPECT_EQ(found[0], "");
  EXPECT_EQ(found[1], "the program's own file could not be written");
}

}  // namespace
}  // namespace lockstep::training
