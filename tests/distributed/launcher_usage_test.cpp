// The command line of lockstep-run.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "launcher_support.h"
#include "tests/support/free_port.h"

namespace lockstep::launcher_test {
namespace {

TEST(Launcher, RejectsAMissingProgram) {
  const Finished path = lockstep_run({"--", "/nowhere/program"});
  EXPECT_EQ(path.status, 1);
  EXPECT_EQ(path.err, "lockstep-run: '/nowhere/program' is not a program that can be started: there is no such file\n");
  const Finished name = lockstep_run({"--", "no-such-program-anywhere"});
  EXPECT_EQ(name.status, 1);
  EXPECT_TRUE(has(name.err, "program 'no-such-program-anywhere' was not found in PATH"));
  EXPECT_EQ(lockstep_run({"--log-dir", "/proc/logs", "--", "true"}).status, 1);
}

struct UsageCase {
  const char* name;
  std::vector<std::string> arguments;
  const char* message;
};
class LauncherUsage : public ::testing::TestWithParam<UsageCase> {};

TEST_P(LauncherUsage, IsOneLineWithStatus2) {
  const Finished run = lockstep_run(GetParam().arguments, {{"LOCKSTEP_TOKEN", "short"}});
  EXPECT_EQ(run.status, 2);
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(has(run.err, GetParam().message));
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
}

INSTANTIATE_TEST_SUITE_P(
    All, LauncherUsage,
    ::testing::Values(
        UsageCase{"NoProgramAtAll", {"--nproc-per-node", "2"}, "there is no program to start"},
        UsageCase{"NoProgram", {"--nproc-per-node", "2", "--"}, "there is no program to start"},
        UsageCase{"UnknownFlag", {"--workers", "2", "--", "true"}, "--workers"},
        UsageCase{"Zero", {"--nproc-per-node", "0", "--", "true"}, "0 is out of range; expected 1 to 4096"},
        UsageCase{"Words",
                  {"--nproc-per-node", "two", "--", "true"},
                  "'two' is no whole number, or too large; expected 1 to 4096"},
        UsageCase{"NodeRank", {"--nnodes", "2", "--node-rank", "2", "--", "true"}, "the node rank is 2"},
        UsageCase{"Workers",
                  {"--nnodes", "65", "--nproc-per-node", "1024", "--", "true"},
                  "65 nodes with 1024 workers each are more than the 65536 workers that a job may have"},
        UsageCase{"Port", {"--nnodes", "2", "--master-port", "70000", "--", "true"}, "expected 1 to 65535"},
        UsageCase{"Restarts", {"--max-restarts", "-1", "--", "true"}, "expected 0 or more"},
        UsageCase{"JoinTimeout", {"--join-timeout", "0", "--", "true"}, "0 is out of range"},
        UsageCase{"Token", {"--nnodes", "2", "--", "true"}, "LOCKSTEP_TOKEN is too short"},
        UsageCase{"ElasticWithoutRestarts", {"--min-nproc", "1", "--", "true"}, "give --max-restarts with --min-nproc"},
        UsageCase{"ElasticWithMoreThanAll",
                  {"--nproc-per-node", "2", "--min-nproc", "3", "--max-restarts", "1", "--", "true"},
                  "the smallest number of workers is 3"}),
    [](const auto& info) { return info.param.name; });

// An IPv6 address stands in brackets in URLs, and in MASTER_ADDR too.
TEST(Launcher, TakesAnAddressInBracketsAndSaysWhichOptionWaitsLonger) {
  const Finished run =
      lockstep_run({"--nproc-per-node", "1", "--nnodes", "2", "--master-addr", "[127.0.0.1]", "--master-port",
                    std::to_string(testing::free_port()), "--join-timeout", "0.2", "--", "true"},
                   {{"LOCKSTEP_TOKEN", "a-token-of-fair-length"}});
  EXPECT_EQ(run.status, 1);
  EXPECT_TRUE(has(run.err, "node 1 did not join the job within 0.2 s; "));
  EXPECT_TRUE(has(run.err, "--join-timeout waits longer"));
}

// As torchrun's users write it: Note [Names of options] in train/command_line/parse.h.
TEST(Launcher, TakesTorchrunsCommandLine) {
  const Finished run = lockstep_run({"--nproc_per_node=2", "--nnodes=1", "--node_rank", "0", "--master_addr=127.0.0.1",
                                     "--master_port=29500", "--no_python", "printf", "%s\\n", "--mode_of=x_y", "--"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(sorted_lines(run.out),
            (std::vector<std::string>{"[0] --", "[0] --mode_of=x_y", "[1] --", "[1] --mode_of=x_y"}));
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kFitsAnywhere = false;  // sanitizers reserve terabytes
#else
constexpr bool kFitsAnywhere = true;
#endif

// A library that was loaded with the program, and started a thread of its own, kept it from ending there.
TEST(Launcher, EndsWhereTheAddressSpaceIsLimited) {
  if (!kFitsAnywhere) GTEST_SKIP() << "sanitizers need the address space";
  for (const char* kilobytes : {"160000", "200000"}) {
    std::vector<std::string> command = {"/bin/sh", "-c", "ulimit -v \"$0\" && exec \"$@\"", kilobytes};
    for (const std::string& argument : lockstep_run_command({"--help"})) command.push_back(argument);
    const Finished run = Process(command).wait(20);
    EXPECT_EQ(run.status, 0) << kilobytes << ": " << run.err;
  }
}

TEST(Launcher, HelpIsNoError) {
  const Finished run = lockstep_run({"--help"});
  EXPECT_EQ(run.status, 0);
  EXPECT_TRUE(has(run.out, "lockstep-run [OPTIONS] [--] PROGRAM [ARGUMENTS...]"));
}

}  // namespace
}  // namespace lockstep::launcher_test
