// The same program with the same flags under each launcher: the same result line.

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/cluster/cluster_support.h"
#include "tests/distributed/launcher_support.h"
#include "tests/support/free_port.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

constexpr std::chrono::seconds kLimit{120};
// The exit status of one_node_slurm.sh that means "cannot run here".
constexpr int kCannotRun = 77;

std::string last_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text.substr(text.rfind('\n') + 1);
}

class Launchers : public ::testing::Test {
 protected:
  void SetUp() override {
    if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  }

  static ProcessResult run(const Arguments& launcher) {
    return run_process(launcher + training_program(20), kClean, kLimit);
  }

  static void expect_the_same(const ProcessResult& result) {
    const ProcessResult reference = run({LOCKSTEP_RUN, "--nproc-per-node", "2", "--"});
    EXPECT_EQ(reference.status, 0) << reference.err;
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(outcome(reference.out), "") << reference.out;
    EXPECT_NE(outcome(reference.out).find("steps=20"), std::string::npos) << reference.out;
    EXPECT_EQ(outcome(result.out), outcome(reference.out)) << result.out << result.err;
    // One result line: the ranks found each other, and not every one trained alone.
    EXPECT_EQ(result.out.find("result: "), result.out.rfind("result: ")) << result.out;
  }

  TemporaryDirectory folder_;
};

TEST_F(Launchers, Torchrun) {
  if (const ProcessResult help = run_process({"torchrun", "--help"}); help.status != 0)
    GTEST_SKIP() << "no torchrun here: " << (help.status == 127 ? "not installed" : last_line(help.err));
  // Debian's torchrun fails under its Python 3.11 unless it is told what to do with the output.
  expect_the_same(run({"torchrun", "--no_python", "--nproc_per_node", "2", "--redirects", "1", "--tee", "1",
                       "--log_dir", folder_.file("logs")}));
}

// As scripts call it that are older than torchrun.
TEST_F(Launchers, TorchDistributedLaunch) {
  if (const ProcessResult help = run_process({"python3", "-m", "torch.distributed.launch", "--help"}); help.status != 0)
    GTEST_SKIP() << "no torch.distributed.launch here: " << last_line(help.err);
  expect_the_same(run({"python3", "-m", "torch.distributed.launch", "--no_python", "--use_env", "--nproc_per_node", "2",
                       "--redirects", "1", "--tee", "1", "--log_dir", folder_.file("logs")}));
}

// lockstep-run in the words of torchrun, without "--" before the program.
TEST_F(Launchers, LockstepRunAsTorchrun) {
  expect_the_same(run({LOCKSTEP_RUN, "--nproc_per_node=2", "--nnodes=1", "--node_rank=0", "--master_addr=127.0.0.1",
                       "--master_port=29500"}));
}

// Each process started by hand and told its place, with the option that launchers of old append.
TEST_F(Launchers, None) {
  using launcher_test::Process;
  const std::map<std::string, std::string> token{{"LOCKSTEP_TOKEN", "0123456789abcdef0123456789abcdef"}};
  const std::string port = std::to_string(free_port());
  for (const std::string& meeting : {"tcp://127.0.0.1:" + port, "file://" + folder_.file("meeting")}) {
    SCOPED_TRACE(meeting);
    const Arguments place{"--init_method", meeting, "--world_size=2"};
    Process other(training_program(20) + place + Arguments{"--rank", "1", "--local_rank=1"}, token);
    Process first(training_program(20) + place + Arguments{"--rank=0", "--local-rank", "0"}, token);
    const auto end = first.wait(60);
    EXPECT_EQ(other.wait(60).status, 0);
    expect_the_same({.status = end.status, .out = end.out, .err = end.err});
  }
}

TEST_F(Launchers, Mpirun) {
  const ProcessResult version = run_process({"mpirun", "--version"});
  if (version.status != 0) GTEST_SKIP() << "no mpirun here";
  if (version.out.find("Open MPI") == std::string::npos && version.out.find("Open RTE") == std::string::npos)
    GTEST_SKIP() << "mpirun is not Open MPI's: " << version.out;
  Arguments launcher{"mpirun", "--oversubscribe", "-n", "2"};
  if (geteuid() == 0) launcher.push_back("--allow-run-as-root");
  expect_the_same(run(launcher));
}

TEST_F(Launchers, Srun) {
  const ProcessResult result = run({LOCKSTEP_ONE_NODE_SLURM, "srun", "--overcommit", "-n", "2"});
  if (result.status == kCannotRun) GTEST_SKIP() << last_line(result.err);
  expect_the_same(result);
}

TEST_F(Launchers, Sbatch) {
  const std::string log = folder_.file("job.log");
  ProcessResult result = run({LOCKSTEP_ONE_NODE_SLURM, "sbatch", "--wait", "--nodes=1", "--ntasks-per-node=2",
                              "--overcommit", "--time=5", "--output=" + log, LOCKSTEP_BATCH_SCRIPT});
  if (result.status == kCannotRun) GTEST_SKIP() << last_line(result.err);
  std::ifstream file(log);
  result.out.assign(std::istreambuf_iterator<char>(file), {});
  expect_the_same(result);
}

}  // namespace
}  // namespace lockstep
