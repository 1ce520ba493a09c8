// Signals and the processes of a training: ranks that hear of a stop in different steps stop after the same one, and
// the request that ranks answer ends nobody.

#include "lockstep/train/agreement.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/posix.h"
#include "lockstep/distributed/parallel/zero_redundancy_optimizer.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "lockstep/train/run.h"
#include "lockstep/train/workers.h"
#include "tests/distributed/ranks.h"
#include "tests/support/temporary_path.h"

namespace lockstep::training {
namespace {

using namespace lockstep::testing;

TEST(Agreement, RanksStopAndSaveAfterTheSameStep) {
  std::array<int, 3> stopped{}, saves{};
  run_ranks(3, Link::in_process, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Agreement agreement(&group);
    for (int step = 0; stopped[rank] == 0; ++step) {
      ASSERT_LT(step, 100'000);
      // Rank 2 alone is asked to stop; rank 0's clock alone says when to save.
      const Agreement::Decision decision = agreement.after_step(rank == 2 && step >= 7, rank != 1 && step == 0);
      if (decision.stop) stopped[rank] = step;
      saves[rank] += decision.save ? 1 : 0;
    }
  });
  EXPECT_GE(stopped[0], 7);
  EXPECT_EQ(stopped[1], stopped[0]);
  EXPECT_EQ(stopped[2], stopped[0]);
  EXPECT_EQ(saves, (std::array<int, 3>{1, 1, 1}));
}

TEST(Agreement, OtherSettingsOnARankAreAnErrorOnAll) {
  std::array<std::string, 3> errors;
  run_ranks(3, Link::in_process, [&](ProcessGroup& group) {
    check_same_settings({{"batch_size", "64"}, {"lr", "0.1"}}, group);
    try {
      check_same_settings({{"batch_size", "64"}, {"lr", group.rank() == 1 ? "0.2" : "0.1"}}, group);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  // Whichever of them ends first and is heard.
  for (const std::string& error : errors)
    EXPECT_EQ(
        error,
        "[run] rank(s) 1 were started with other settings than rank 0; rank 1 has lr 0.2, rank 0 has 0.1; pass all "
        "the same");

  // What rank 0 alone has, such as an evaluation, the others would not come to.
  run_ranks(3, Link::in_process, [&](ProcessGroup& group) {
    nn::Metadata settings{{"batch_size", "64"}};
    if (group.rank() != 1) settings["samples of the evaluation"] = "10";
    try {
      check_same_settings(settings, group);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  EXPECT_NE(errors[1].find("rank 1 has samples of the evaluation none, rank 0 has 10"), std::string::npos) << errors[1];
  EXPECT_EQ(errors[2], errors[0]);
}

TEST(Agreement, ACheckpointThatOneRankWasNotToldOfIsAnErrorBeforeTheFirstStep) {
  const TemporaryPath file;
  std::array<std::string, 2> errors;
  run_ranks(2, Link::in_process, [&](ProcessGroup& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    nn::Linear net(2, 2);
    distributed::TrainingStep step(net, {.group = group.shared_from_this()});
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const data::DataLoader loader(std::make_shared<data::TensorDataset>(ones({8, 2}), zeros({8}, {.dtype = kInt64})),
                                  {.batch_size = 4});
    const auto loss = [](nn::Module& module, const data::Batch& part) {
      return cross_entropy(module.forward(part.x), part.y);
    };
    RunOptions options{.progress = Progress::none};
    if (rank == 0) options.checkpoint = file.text();
    training::Run run(step, optimizer, loader, loss, options);
    try {
      run.train();
    } catch (const Error& error) {
      errors[rank] = error.what();
    }
  });
  EXPECT_NE(errors[0].find("rank(s) 1 were started with other settings"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 1 has checkpoint no file, rank 0 has a file"), std::string::npos) << errors[1];
}

// Where files go is rank 0's word; and a course of the learning rate that differs later on is found at the start.
TEST(Agreement, FilesAreRank0sAndSchedulesAreCompared) {
  const testing::TempDir folder;
  const std::string file = folder / "of_rank_0", elsewhere = folder / "of_rank_1";
  std::array<std::string, 2> errors;
  const auto train = [&](bool other_schedule) {
    run_ranks(2, Link::in_process, [&](ProcessGroup& group) {
      const bool first = group.rank() == 0;
      nn::Linear net(2, 2);
      distributed::TrainingStep step(net, {.group = group.shared_from_this(), .zero = 2});
      auto optimizer = std::make_unique<distributed::ZeroRedundancyOptimizer>(
          std::make_unique<optim::SGD>(net.parameters(), optim::SGDOptions{.lr = 0.1}), step);
      const data::DataLoader loader(std::make_shared<data::TensorDataset>(ones({8, 2}), zeros({8}, {.dtype = kInt64})),
                                    {.batch_size = 4, .rank = group.rank(), .world_size = 2});
      const auto loss = [](nn::Module& module, const data::Batch& part) {
        return cross_entropy(module.forward(part.x), part.y);
      };
      RunOptions options{.checkpoint = first ? file : elsewhere, .progress = Progress::none};
      if (first) options.save = file + ".weights";
      if (first) options.trace_hashes = file + ".hashes";
      training::Run run(step, *optimizer, loader, loss, options);
      run.set_schedule([=](std::int64_t n) { return n > 0 && other_schedule && !first ? 0.05 : 0.1; });
      try {
        run.train();
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(group.rank())] = error.what();
      }
    });
  };
  train(true);
  EXPECT_NE(errors[0].find("rank(s) 1 were started with other settings"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 1 has learning rate of group 0, step 00000001"), std::string::npos) << errors[1];
  errors = {};
  train(false);
  EXPECT_EQ(errors[0] + errors[1], "");
  for (const char* ending : {"", ".weights", ".hashes"}) EXPECT_TRUE(std::filesystem::exists(file + ending)) << ending;
  EXPECT_FALSE(std::filesystem::exists(elsewhere));
}

TEST(Agreement, OtherSamplesOnARankAreAnErrorOnAll) {
  std::array<std::string, 2> errors;
  run_ranks(2, Link::in_process, [&](ProcessGroup& group) {
    nn::Linear net(2, 2);
    distributed::TrainingStep step(net, {.group = group.shared_from_this()});
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    const Tensor x = ones({8, 2});
    if (group.rank() == 1) x[7].fill_(2.0);
    const data::DataLoader loader(std::make_shared<data::TensorDataset>(x, zeros({8}, {.dtype = kInt64})),
                                  {.batch_size = 4, .rank = group.rank(), .world_size = 2});
    const auto loss = [](nn::Module& module, const data::Batch& part) {
      return cross_entropy(module.forward(part.x), part.y);
    };
    training::Run run(step, optimizer, loader, loss, {.progress = Progress::none});
    try {
      run.train();
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  EXPECT_NE(errors[0].find("rank(s) 1 were started with other settings"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("rank 1 has samples, by checksum x float32 [8, 2] "), std::string::npos) << errors[1];
}

// Also of a run that goes on behind the step that is traced from the beginning, and of one with fewer steps left.
TEST(StepTrace, IsWrittenByAResumedRunToo) {
  const testing::TempDir folder;
  const auto train = [&](std::int64_t steps, const std::string& trace) {
    run_ranks(2, Link::in_process, [&](ProcessGroup& group) {
      nn::Linear net(2, 2);
      distributed::TrainingStep step(net, {.group = group.shared_from_this()});
      optim::SGD optimizer(net.parameters(), {.lr = 0.1});
      const data::DataLoader loader(std::make_shared<data::TensorDataset>(ones({8, 2}), zeros({8}, {.dtype = kInt64})),
                                    {.batch_size = 4, .rank = group.rank(), .world_size = 2});
      const auto loss = [](nn::Module& module, const data::Batch& part) {
        return cross_entropy(module.forward(part.x), part.y);
      };
      training::Run run(step, optimizer, loader, loss,
                        {.epochs = 10,
                         .max_steps = steps,
                         .checkpoint = folder / "checkpoint",
                         .resume = "auto",
                         .trace = folder / trace,
                         .progress = Progress::none});
      run.train();
    });
    return std::filesystem::file_size(folder / trace);
  };
  EXPECT_GT(train(7, "from_the_beginning"), 0u);
  EXPECT_GT(train(14, "resumed"), 0u);
  EXPECT_GT(train(16, "of_two_steps"), 0u);
}

TEST(Agreement, AProcessAloneDecidesAtOnce) {
  Agreement agreement(nullptr);
  EXPECT_FALSE(agreement.after_step(false, false).stop);
  EXPECT_TRUE(agreement.after_step(true, false).stop);
  EXPECT_TRUE(agreement.after_step(false, true).save);
}

TEST(Workers, AProcessWithoutAJobAnswersTheRequestOfItsLastOperation) {
  const Workers alone({.mode = Mode::single});
  Pipe pipe = make_pipe();
  const FileDescriptor before(::dup(STDERR_FILENO));
  ::dup2(pipe.write.get(), STDERR_FILENO);
  ::raise(SIGUSR1);  // ends a process that has no handler
  pollfd answer{pipe.read.get(), POLLIN, 0};
  const int ready = ::poll(&answer, 1, 10'000);
  ::dup2(before.get(), STDERR_FILENO);
  ASSERT_EQ(ready, 1) << "there was no answer";
  std::array<char, 256> text{};
  ASSERT_GT(::read(pipe.read.get(), text.data(), text.size() - 1), 0);
  EXPECT_NE(std::string(text.data()).find("SIGUSR1, is in no process group"), std::string::npos) << text.data();
}

TEST(Agreement, SettingsAreOfAnyLengthAndBytes) {
  const std::string large(std::size_t{3} << 20, 'x');
  std::array<std::string, 2> errors;
  run_ranks(2, Link::in_process, [&](ProcessGroup& group) {
    nn::Metadata settings{{"folder", "a\xff"}, {"large", large}};
    check_same_settings(settings, group);
    if (group.rank() == 1) settings["large"] += "y";
    try {
      check_same_settings(settings, group);
    } catch (const Error& error) {
      errors[static_cast<std::size_t>(group.rank())] = error.what();
    }
  });
  EXPECT_NE(errors[1].find("xxx... (3145729 bytes), rank 0 has xxx"), std::string::npos) << errors[1];
  EXPECT_LT(errors[1].size(), 1000U);
  EXPECT_EQ(errors[0], errors[1]);
}

}  // namespace
}  // namespace lockstep::training
