// gpt_train on meshes, as its users see it: one hash on every mesh, across resumptions and kills; refusals; bisection.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "lockstep/distributed/mpi/mpi.h"
#include "tests/apps/train_support.h"
#include "tests/apps/worker_process.h"
#include "tests/distributed/launcher_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;
using launcher_test::Finished;
using launcher_test::Process;

using Arguments = std::vector<std::string>;

class MeshPrograms : public ::testing::Test {
 protected:
  MeshPrograms() {
    std::ofstream text(text_);
    for (int i = 0; i < 400; ++i)
      text << "line " << i * 7919 % 1000 << " says: the quick brown fox, " << i % 13 << "!\n";
  }

  Arguments command(int steps, const Arguments& more) const {
    return Arguments{LOCKSTEP_GPT_TRAIN,
                     "--text",
                     text_,
                     "--max-steps",
                     std::to_string(steps),
                     "--evaluate-every",
                     std::to_string(steps),
                     "--evaluate-windows",
                     "4",
                     "--batch-size",
                     "8",
                     "--lockstep",
                     "8",
                     "--threads",
                     "1",
                     "--no-progress"} +
           more;
  }
  ProcessResult run(int steps, const Arguments& more) const {
    const ProcessResult result = run_process(command(steps, more), kClean, std::chrono::seconds(120));
    EXPECT_EQ(result.status, 0) << result.err;
    return result;
  }
  std::string hash(int steps, const Arguments& more) const {
    const std::string found = weights_of(run(steps, more).out);
    EXPECT_FALSE(found.empty());
    return found;
  }

  const TemporaryDirectory folder_;
  const std::string text_ = folder_.file("text.txt");
};

// Dropout and clipping included; a pipeline gives what no pipeline gives.
TEST_F(MeshPrograms, PipelinesGiveTheHashOfOneProcess) {
  const Arguments dropout{"--dropout", "0.1"};
  const std::string one = hash(3, dropout);
  for (const Arguments& mesh : {Arguments{"--mesh", "pipeline=2"}, Arguments{"--mesh", "pipeline=2,data=2"},
                                Arguments{"--mesh", "pipeline=4", "--schedule", "gpipe", "--recompute"},
                                Arguments{"--mesh", "pipeline=2", "--schedule", "interleaved", "--chunks", "3"},
                                Arguments{"--mesh", "pipeline=3", "--schedule", "zero-bubble"}})
    EXPECT_EQ(hash(3, dropout + mesh), one) << mesh[1];
}

// Adapters alone move, though a stage computes its blocks again.
TEST_F(MeshPrograms, AdaptersGiveOneHash) {
  const std::string model = folder_.file("model");
  hash(1, {"--out", model});
  const Arguments adapters{"--model", model, "--lora", "2", "--warmup", "0"};
  const std::string one = hash(2, adapters);
  for (const Arguments& mesh : {Arguments{"--mesh", "pipeline=2", "--recompute"}, Arguments{"--mesh", "pipeline=2"},
                                Arguments{"--mesh", "data=2,pipeline=2", "--zero=2", "--recompute"}})
    EXPECT_EQ(hash(2, adapters + mesh), one) << fmt::format("{}", mesh.back());
}

TEST_F(MeshPrograms, TensorShardsGiveOneHashInAnyOrderOfTheMesh) {
  const Arguments shards{"--lockstep-tensor", "4", "--dropout", "0.1"};
  const std::string one = hash(3, shards);
  for (const char* mesh : {"data=2,pipeline=2,tensor=2", "tensor=2,data=3", "tensor=4"})
    EXPECT_EQ(hash(3, shards + Arguments{"--mesh", mesh}), one) << mesh;
  EXPECT_NE(hash(3, {"--lockstep-tensor", "2", "--dropout", "0.1"}), one) << "the number of shards counts";
}

// Tokens are divided besides: mixed precision, stages, ZeRO and recomputation with it.
TEST_F(MeshPrograms, SequenceParallelismGivesOneHash) {
  const Arguments shards{"--lockstep-tensor", "4", "--dropout", "0.1", "--sequence-parallel"};
  const std::string one = hash(3, shards);
  for (const Arguments& mesh :
       {Arguments{"--mesh", "data=2,pipeline=2,tensor=2"}, Arguments{"--mesh", "tensor=4", "--recompute"},
        Arguments{"--mesh", "data=3,tensor=2", "--zero=3"}})
    EXPECT_EQ(hash(3, shards + mesh), one) << mesh[1];
  const Arguments low{"--amp", "bf16"};
  EXPECT_EQ(hash(3, shards + low + Arguments{"--mesh", "pipeline=2,tensor=2"}), hash(3, shards + low));
}

// Optimizer state, gradients and parameters divided over `data` besides; and on to other meshes in between.
TEST_F(MeshPrograms, ZeroOnAMeshGivesTheSameHash) {
  const Arguments shards{"--lockstep-tensor", "2",    "--dropout", "0.1", "--warmup", "0", "--lr", "0.001",
                         "--min-lr",          "0.001"};
  const std::string one = hash(4, shards), file = folder_.file("zero.safetensors");
  for (const Arguments& mesh :
       {Arguments{"--mesh", "data=2,pipeline=2,tensor=2", "--zero"}, Arguments{"--mesh", "data=2,tensor=2", "--zero=2"},
        Arguments{"--mesh", "data=3,tensor=2", "--zero=3"}, Arguments{"--mesh", "data=3,pipeline=2", "--zero=2"},
        Arguments{"--mesh", "data=2,pipeline=2,tensor=2", "--zero=3"}})
    EXPECT_EQ(hash(4, shards + mesh), one) << mesh[1] << " " << mesh[2];
  const auto go_on = [&](int steps, const Arguments& more) {
    Arguments all = command(4, shards + more);
    *(std::find(all.begin(), all.end(), "--max-steps") + 1) = std::to_string(steps);
    const ProcessResult result = run_process(all + Arguments{"--checkpoint", file}, kClean, std::chrono::seconds(120));
    EXPECT_EQ(result.status, 0) << result.err;
    return weights_of(result.out);
  };
  go_on(1, {"--mesh", "data=2,tensor=2", "--zero=3"});
  go_on(2, {"--mesh", "data=2,pipeline=3", "--zero=3", "--resume", file});
  go_on(3, {"--mesh", "data=4,tensor=2", "--zero=2", "--resume", file});
  EXPECT_EQ(go_on(4, {"--mesh", "pipeline=2,tensor=2", "--resume", file}), one);
}

// The loss is scaled, and whether gradients are finite is agreed upon: from a scale at which the first steps overflow,
// with the mesh changed while it comes down.
TEST_F(MeshPrograms, LossesAreScaledAlikeOnEveryMesh) {
  const Arguments half{"--amp", "fp16",  "--lockstep-tensor", "2",    "--warmup", "0",
                       "--lr",  "0.001", "--min-lr",          "0.001"};
  const std::string one = hash(4, half), file = folder_.file("half.safetensors");
  EXPECT_NE(hash(4, Arguments{"--lockstep-tensor", "2"}), one);
  EXPECT_EQ(hash(4, half + Arguments{"--mesh", "data=2,pipeline=2,tensor=2", "--zero=2"}), one);
  const auto go_on = [&](int steps, const Arguments& more) {
    Arguments all = command(4, half + more);
    *(std::find(all.begin(), all.end(), "--max-steps") + 1) = std::to_string(steps);
    const ProcessResult result = run_process(all + Arguments{"--checkpoint", file}, kClean, std::chrono::seconds(120));
    EXPECT_EQ(result.status, 0) << result.err;
    return weights_of(result.out);
  };
  go_on(2, {"--mesh", "pipeline=2,tensor=2"});
  EXPECT_EQ(go_on(4, {"--mesh", "data=3,pipeline=2", "--zero=3", "--resume", file}), one);
}

// Without divided layers: what each stage of ZeRO has saved, others go on from, on other numbers of processes.
TEST_F(MeshPrograms, AZeroRunGoesOnOnOtherProcesses) {
  const Arguments rate{"--warmup", "0", "--lr", "0.001", "--min-lr", "0.001"};
  const std::string one = hash(4, rate), file = folder_.file("shares.safetensors");
  const auto go_on = [&](int steps, const Arguments& more) {
    Arguments all = command(4, rate + more);
    *(std::find(all.begin(), all.end(), "--max-steps") + 1) = std::to_string(steps);
    const ProcessResult result = run_process(all + Arguments{"--checkpoint", file}, kClean, std::chrono::seconds(120));
    EXPECT_EQ(result.status, 0) << result.err;
    return weights_of(result.out);
  };
  go_on(1, {"--nproc", "2", "--zero=3"});
  go_on(2, {"--nproc", "3", "--zero=3", "--resume", file});
  go_on(3, {"--nproc", "1", "--zero=3", "--resume", file});
  EXPECT_EQ(go_on(4, {"--nproc", "2", "--zero=2", "--resume", file}), one);
}

TEST_F(MeshPrograms, ARunGoesOnOnAnotherMesh) {
  // A rate that does not depend on the number of steps.
  const Arguments shards{"--lockstep-tensor", "2", "--warmup", "0", "--lr", "0.001", "--min-lr", "0.001"};
  const std::string whole = hash(4, shards);
  const std::string file = folder_.file("run.safetensors");
  const auto short_run = [&](int steps, const Arguments& more) {
    Arguments all = command(4, shards + more);
    *(std::find(all.begin(), all.end(), "--max-steps") + 1) = std::to_string(steps);
    const ProcessResult result = run_process(all + Arguments{"--checkpoint", file}, kClean, std::chrono::seconds(120));
    EXPECT_EQ(result.status, 0) << result.err;
    return weights_of(result.out);
  };
  short_run(1, {"--mesh", "data=2,pipeline=2,tensor=2"});
  short_run(2, {"--mesh", "pipeline=3", "--resume", file});
  short_run(3, {"--resume", file});
  EXPECT_EQ(short_run(4, {"--mesh", "tensor=2,data=2", "--resume", file}), whole);
  // With other shards the bits would be others.
  const Arguments other = command(4, {"--lockstep-tensor", "4", "--resume", file});
  const ProcessResult refused = run_process(other, kClean, std::chrono::seconds(60));
  EXPECT_NE(refused.status, 0);
  EXPECT_NE(refused.err.find("was trained with tensor_shards 2, not 4"), std::string::npos) << refused.err;
}

TEST_F(MeshPrograms, BisectComparesMeshes) {
  const auto trace = [&](const std::string& name, const Arguments& more) {
    run(2, Arguments{"--lockstep-tensor", "2", "--trace-hashes", folder_.file(name)} + more);
    return folder_.file(name);
  };
  const auto bisect = [](const std::string& a, const std::string& b) {
    return run_process({LOCKSTEP_BISECT, a, b}, kClean, std::chrono::seconds(30));
  };
  const std::string one = trace("one", {});
  const ProcessResult same = bisect(one, trace("mesh", {"--mesh", "data=2,pipeline=2,tensor=2"}));
  EXPECT_EQ(same.status, 0) << same.out << same.err;
  for (const auto& [name, more] : {std::pair{"zero2", Arguments{"--mesh", "data=2,tensor=2", "--zero=2"}},
                                   {"zero3", Arguments{"--mesh", "data=2,pipeline=2", "--zero=3"}}}) {
    const ProcessResult divided = bisect(one, trace(name, more));
    EXPECT_EQ(divided.status, 0) << name << divided.out << divided.err;
  }
  // Steps of the same names: the first weights differ, by the learning rate.
  const ProcessResult other = bisect(one, trace("other", {"--mesh", "pipeline=2", "--lr", "0.02"}));
  EXPECT_NE(other.status, 0);
  EXPECT_NE((other.out + other.err).find("the new value of wte.weight"), std::string::npos) << other.out << other.err;
}

// Without a mesh gradients are clipped by the run, and what is traced are those that were clipped.
TEST_F(MeshPrograms, BisectComparesDividedGradientsWithWholeOnes) {
  const auto trace = [&](const std::string& name, const Arguments& more) {
    run(2, Arguments{"--clip", "0.01", "--trace-hashes", folder_.file(name)} + more);
    return folder_.file(name);
  };
  const std::string one = trace("one", {}), two = trace("two", {"--mode", "ddp", "--nproc", "2", "--zero=2"});
  const ProcessResult same = run_process({LOCKSTEP_BISECT, one, two}, kClean, std::chrono::seconds(30));
  EXPECT_EQ(same.status, 0) << same.out << same.err;
}

TEST_F(MeshPrograms, WhatDoesNotFitIsRefusedInOneLine) {
  const std::pair<Arguments, const char*> cases[] = {
      {{"--mesh", "pipeline=7"}, "fewer than the 7 that 7 stage(s)"},
      {{"--mesh", "pipeline=4", "--schedule", "interleaved", "--chunks", "2"}, "fewer than the 8 that 4 stage(s)"},
      {{"--mesh", "tensor=2"}, "pass --lockstep-tensor"},
      {{"--mesh", "tensor=2", "--lockstep-tensor", "1"}, "cannot be divided evenly over tensor=2"},
      {{"--lockstep-tensor", "8"}, "its 4 heads cannot be divided evenly into 8 parts"},
      {{"--lockstep-tensor", "3"}, "is not a power of two"},
      {{"--mesh", "data=2", "--nproc", "3"}, "is for 2 process(es), and there are 3"},
      {{"--mesh", "data=16"}, "--lockstep 8 cannot be shared by 16 workers"},
      {{"--mesh", "data=two"}, "expected sizes from 1"},
      {{"--mesh", "auto", "--nproc", "97"}, "no mesh of 97 process(es) fits the model"},
      {{"--sequence-parallel"}, "pass --mesh with tensor above 1, or --lockstep-tensor"},
      {{"--chunks", "2"}, "--chunks 2 does not go with --schedule 1f1b"},
  };
  for (const auto& [arguments, message] : cases) {
    const ProcessResult result = run_process(command(2, arguments), kClean, std::chrono::seconds(30));
    EXPECT_EQ(result.status, 2) << result.err;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

// Groups that are split off a job under mpirun, stages and divided layers on them.
TEST_F(MeshPrograms, MeshesUnderMpirunGiveTheHashOfOneProcess) {
  if (!distributed::mpi::is_available()) GTEST_SKIP() << "this build has no MPI";
  ProcessEnvironment environment = kClean;
  const char* const inherited = std::getenv("ASAN_OPTIONS");  // Open MPI leaks: see mpi_test.cpp
  environment.emplace_back("ASAN_OPTIONS", (inherited ? std::string(inherited) + ":" : "") + "detect_leaks=0");
  for (const char* variable : {"OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM",
                               "OMPI_MCA_rmaps_base_oversubscribe", "OMPI_MCA_mpi_yield_when_idle"})
    environment.emplace_back(variable, "1");
  if (run_process({"mpirun", "--version"}, environment, std::chrono::seconds(30)).status != 0)
    GTEST_SKIP() << "this machine has no mpirun that works";
  const Arguments shards{"--lockstep-tensor", "2", "--dropout", "0.1"};
  const std::string one = hash(3, shards);
  for (const auto& [processes, mesh] : {std::pair{"2", "pipeline=2"}, {"4", "data=2,tensor=2"}}) {
    const ProcessResult result =
        run_process(Arguments{"mpirun", "-n", processes} +
                        command(3, shards + Arguments{"--mesh", mesh, "--backend", "mpi", "--timeout", "60"}),
                    environment, std::chrono::seconds(120));
    EXPECT_EQ(result.status, 0) << result.out << result.err;
    EXPECT_EQ(weights_of(result.out), one) << mesh;
  }
}

// A worker of the 2 x 2 x 2 mesh is killed at a random moment; all eight, or (auto) the seven that are left, go on.
TEST_F(MeshPrograms, AKilledWorkerChangesNothing) {
  constexpr int kSteps = 8;
  const Arguments shards{"--lockstep-tensor", "2"};
  const std::string expected = hash(kSteps, shards);
  const int repeats = amount("LOCKSTEP_TEST_REPEATS", 2);
  int disturbed = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    SCOPED_TRACE("repeat " + std::to_string(repeat));
    const bool goes_on_with_less = repeat % 2 == 1;
    const std::string file = folder_.file(fmt::format("run{}.safetensors", repeat));
    std::mt19937 random(static_cast<unsigned>(repeat) + 5);
    Process job(
        Arguments{LOCKSTEP_RUN, "--nproc-per-node", "8", "--min-nproc", goes_on_with_less ? "2" : "8", "--max-restarts",
                  "3", "--"} +
        command(kSteps,
                shards + Arguments{"--mesh",
                                   goes_on_with_less ? "auto:data=2,pipeline=2,tensor=2" : "data=2,pipeline=2,tensor=2",
                                   "--checkpoint", file, "--checkpoint-every", "1", "--timeout", "30"}));
    const int rank = static_cast<int>(random() % 8);
    for (int i = 0; i < 3000 && ::access(file.c_str(), F_OK) != 0; ++i) ::usleep(10'000);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 500));
    if (const pid_t victim = worker(job.pid(), rank); victim > 0) {
      ::kill(victim, SIGKILL);
      ++disturbed;
    }
    const Finished end = job.wait(120);
    EXPECT_EQ(end.status, 0) << end.err;
    EXPECT_EQ(weights_of(end.out), expected) << end.out << end.err;
    if (end.err.find("was killed by signal 9") == std::string::npos) continue;
    EXPECT_NE(end.err.find(fmt::format("starting {} worker(s) again", goes_on_with_less ? 7 : 8)), std::string::npos)
        << end.err;
  }
  EXPECT_GE(2 * disturbed, repeats);
}

// A worker that answers no more, but is not gone: the others end at their deadline, and name it.
TEST_F(MeshPrograms, AStoppedWorkerEndsTheJobAtItsDeadline) {
  const std::string file = folder_.file("stopped.safetensors");
  Process job(Arguments{LOCKSTEP_RUN, "--nproc-per-node", "4", "--"} +
              command(100'000, {"--lockstep-tensor", "2", "--mesh", "data=2,pipeline=2", "--zero=3", "--checkpoint",
                                file, "--checkpoint-every", "1", "--timeout", "4"}));
  for (int i = 0; i < 3000 && ::access(file.c_str(), F_OK) != 0; ++i) ::usleep(10'000);
  const pid_t victim = worker(job.pid(), 2);
  ASSERT_GT(victim, 0);
  ::kill(victim, SIGSTOP);
  const auto start = std::chrono::steady_clock::now();
  const Finished end = job.wait(60);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(40));
  EXPECT_NE(end.status, 0) << end.out;
  EXPECT_NE(end.err.find("rank 2"), std::string::npos) << end.err;
  EXPECT_NE(::kill(victim, 0), 0) << "the stopped process is still there";
}

// Rank 0 has one option, rank 1 another: whatever shapes the training is compared before the first step.
TEST_F(MeshPrograms, HaveTheSameOptionsOnAllRanksButForFiles) {
  const TemporaryDirectory directory;
  const auto run = [&](Arguments program, const std::string& rank0, const std::string& rank1) {
    const std::string script = "if [ $RANK = 0 ]; then exec \"$@\" " + rank0 + "; else exec \"$@\" " + rank1 + "; fi";
    return run_process(Arguments{LOCKSTEP_RUN, "--nproc-per-node", "2", "--", "sh", "-c", script, "sh"} + program +
                           Arguments{"--mode", "ddp", "--threads", "1", "--timeout", "20", "--no-progress"},
                       kClean, std::chrono::seconds(100));
  };
  const Arguments gpt{LOCKSTEP_GPT_TRAIN,   "--text", text_, "--max-steps", "2", "--batch-size", "2",
                      "--evaluate-windows", "2"};
  for (const auto& [rank0, rank1, name] :
       std::vector<std::array<std::string, 3>>{{"", "--weight-decay 0.5", "--weight-decay"},
                                               {"--beta2 0.5", "", "--beta2"},
                                               {"--clip 3", "--clip 5", "--clip"}}) {
    const ProcessResult result = run(gpt, rank0, rank1);
    EXPECT_EQ(result.status, 1) << result.out;
    EXPECT_NE(result.err.find("rank 1 has " + name + " "), std::string::npos) << result.err;
  }
  // The same number however it is typed, a default that is spelled out, and what is rank 0's business.
  const ProcessResult result = run(
      gpt + Arguments{"--mesh", "pipeline=2"},
      fmt::format("--clip 1.0 --beta2 0.9 --out '{}' --checkpoint '{}'", directory.file("model"),
                  directory.file("checkpoint")),
      fmt::format("--beta2 9e-1 --checkpoint-every 0 --checkpoint '{}' --keep-checkpoints 2", directory.file("own")));
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_TRUE(std::filesystem::exists(directory.file("model") + "/model.safetensors")) << result.err;
  EXPECT_TRUE(std::filesystem::exists(directory.file("checkpoint"))) << result.err;
  EXPECT_FALSE(std::filesystem::exists(directory.file("own"))) << result.err;
}

}  // namespace
}  // namespace lockstep
