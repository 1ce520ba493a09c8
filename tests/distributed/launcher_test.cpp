#include "lockstep/distributed/launcher/launcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "launcher_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::launcher_test {
namespace {

const std::string kWorker = LOCKSTEP_LAUNCHER_WORKER;

Finished run_shell(int workers, const std::string& script, std::vector<std::string> options = {}) {
  std::vector<std::string> arguments{"--nproc-per-node", std::to_string(workers)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  arguments.insert(arguments.end(), {"--", "sh", "-c", script});
  return lockstep_run(arguments);
}

std::string contents(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Launcher, GivesEachWorkerItsPlace) {
  const Finished run = run_shell(3,
                                 "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR "
                                 "$LOCKSTEP_STORE_HOSTED $LOCKSTEP_RESTART_COUNT $LOCKSTEP_ELASTIC ${#LOCKSTEP_TOKEN}");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(sorted_lines(run.out),
            (std::vector<std::string>{"[0] 0 3 0 3 127.0.0.1 1 0 0 64", "[1] 1 3 1 3 127.0.0.1 1 0 0 64",
                                      "[2] 2 3 2 3 127.0.0.1 1 0 0 64"}));
  EXPECT_EQ(run.err, "");
}

TEST(Launcher, DividesTheCoresUnlessToldOtherwise) {
  const std::string show = "echo threads=$LOCKSTEP_NUM_THREADS";
  EXPECT_TRUE(has(run_shell(2, show).out, "threads="));
  EXPECT_EQ(numbers_after(run_shell(64, show).out, "threads="), std::vector<int>(64, 1));
  const std::vector<std::string> command{"--nproc-per-node", "1", "--", "sh", "-c", show};
  EXPECT_TRUE(has(lockstep_run(command, {{"LOCKSTEP_NUM_THREADS", "7"}}).out, "threads=7"));
  EXPECT_EQ(lockstep_run(command, {{"OMP_NUM_THREADS", "5"}}).out, "[0] threads=\n");
}

TEST(Launcher, MakesAFreshTokenForEachJob) {
  const std::string first = run_shell(1, "echo $LOCKSTEP_TOKEN").out;
  EXPECT_NE(first, run_shell(1, "echo $LOCKSTEP_TOKEN").out);
}

TEST(Launcher, ServesTheStoreToItsWorkers) {
  const Finished run = lockstep_run({"--nproc-per-node", "4", "--", kWorker, "meet"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(sorted_lines(run.out),
            (std::vector<std::string>{"[0] rank 0 met 4", "[1] rank 1 met 4", "[2] rank 2 met 4", "[3] rank 3 met 4"}));
}

TEST(Launcher, TakesTheIPv6LoopbackWhereThereIsNoOther) {
  const std::string own_network =
      "exec unshare -n sh -c 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && ip addr show lo | grep -q ::1 && ";
  if (std::system((own_network + "true' 2>/dev/null").c_str()) != 0)
    GTEST_SKIP() << "a network with ::1 alone cannot be made here";
  const std::string launcher = LOCKSTEP_RUN_PROGRAM;
  const Finished run =
      Process({"/bin/sh", "-c", own_network + "exec " + launcher + " --nproc-per-node 2 -- " + kWorker + " meet'"})
          .wait();
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(sorted_lines(run.out), (std::vector<std::string>{"[0] rank 0 met 2", "[1] rank 1 met 2"}));
}

TEST(Launcher, StoreRefusesAnotherToken) {
  const Finished run = lockstep_run({"--nproc-per-node", "1", "--", kWorker, "wrong-token"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_EQ(run.out, "[0] refused\n");
}

TEST(Launcher, KeepsLinesWhole) {
  const Finished run = run_shell(4, "for i in $(seq 200); do printf 'left%s-' $RANK; printf 'right%s\\n' $RANK; done");
  EXPECT_EQ(run.status, 0) << run.err;
  const auto lines = sorted_lines(run.out);
  ASSERT_EQ(lines.size(), 800u);
  for (int rank = 0; rank < 4; ++rank) {
    const std::string number = std::to_string(rank);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "[" + number + "] left" + number + "-right" + number), 200);
  }
}

TEST(Launcher, PassesOnAnUnfinishedLastLineAndStderr) {
  const Finished run = run_shell(1, "printf 'no newline'; echo warning >&2");
  EXPECT_EQ(run.status, 0);
  EXPECT_EQ(run.out, "[0] no newline\n");
  EXPECT_EQ(run.err, "[0] warning\n");
}

TEST(Launcher, ReportsTheFirstFailureAndEndsTheOthers) {
  const Finished run = run_shell(3,
                                 "case $RANK in 1) sleep 0.3; echo the cause >&2; exit 7;; "
                                 "*) trap 'echo late effect >&2; exit 9' TERM; sleep 60 & wait;; esac");
  EXPECT_EQ(run.status, 7);
  EXPECT_LT(run.seconds, 10);
  EXPECT_TRUE(has(run.err, "rank 1 (pid "));
  EXPECT_TRUE(has(run.err, "failed first: it exited with status 7 after 0."));
  EXPECT_TRUE(has(run.err, "[1] the cause\n"));
  EXPECT_TRUE(has(run.err, "stand above, behind [1]\n"));
  EXPECT_EQ(run.err.find("the cause"), run.err.rfind("the cause")) << "said once";
}

TEST(Launcher, ReportsAWorkerThatASignalKilled) {
  const Finished run = run_shell(2, "[ $RANK = 0 ] && kill -SEGV $$; sleep 60");
  EXPECT_EQ(run.status, 128 + SIGSEGV);
  EXPECT_TRUE(has(run.err, "rank 0 (pid "));
  EXPECT_TRUE(has(run.err, "was killed by signal 11 (SIGSEGV)"));
  EXPECT_TRUE(has(run.err, "it wrote nothing to stderr"));
}

TEST(Launcher, RepeatsTheLastLinesIfTheyAreOutOfSight) {
  const Finished run = run_shell(2,
                                 "case $RANK in 1) for i in $(seq 100); do echo line $i >&2; done; sleep 0.4; exit 1;; "
                                 "*) sleep 0.2; for i in $(seq 40); do echo waiting >&2; done; sleep 60;; esac");
  EXPECT_EQ(run.status, 1);
  EXPECT_TRUE(has(run.err, "lockstep-run:   | line 100\n"));
  EXPECT_FALSE(has(run.err, "lockstep-run:   | line 50\n"));
}

TEST(Launcher, KillsAWorkerThatIgnoresSigterm) {
  const Finished run = run_shell(2, "trap '' TERM; [ $RANK = 0 ] && { sleep 0.2; exit 4; }; sleep 60");
  EXPECT_EQ(run.status, 4);
  EXPECT_GT(run.seconds, 3.5);  // SIGKILL comes 4 s after SIGTERM
  EXPECT_LT(run.seconds, 15);
  EXPECT_TRUE(has(run.err, ") has not ended within 4 s of being asked to, and is killed"));
}

// Also where whoever started it has blocked them, as a mask outlives exec().
TEST(Launcher, ForwardsSigintAndSigterm) {
  for (const int signal : {SIGINT, SIGTERM}) {
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before);
    Process process(lockstep_run_command({"--nproc-per-node", "2", "--", "sh", "-c",
                                          "trap 'echo got it $RANK; exit 5' INT TERM; echo ready $RANK; "
                                          "while :; do sleep 0.05; done"}));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    ASSERT_TRUE(process.wait_for_output("ready 0") && process.wait_for_output("ready 1"));
    process.signal(signal);
    const Finished run = process.wait();
    EXPECT_EQ(run.status, 128 + signal);
    EXPECT_TRUE(has(run.out, "[0] got it 0"));
    EXPECT_TRUE(has(run.out, "[1] got it 1"));
    EXPECT_LT(run.seconds, 10);
  }
}

// A shell starts what runs in its background with SIGINT ignored: a Ctrl-C is for the program in front. SIGTERM asks
// the job to end however it was started.
TEST(Launcher, LeavesSigintIgnoredIfItWas) {
  const std::string launcher = LOCKSTEP_RUN_PROGRAM;
  for (const int signal : {SIGINT, SIGTERM}) {
    Process process(
        {"/bin/sh", "-c",
         "trap '' INT TERM; exec " + launcher + " --nproc-per-node 1 -- sh -c 'echo ready; sleep 1; echo at the end'"});
    ASSERT_TRUE(process.wait_for_output("ready"));
    process.signal(signal);
    const Finished run = process.wait();
    EXPECT_EQ(run.status, signal == SIGINT ? 0 : 128 + SIGTERM) << run.err;
    EXPECT_EQ(has(run.out, "at the end"), signal == SIGINT) << run.out;
  }
}

// A worker of ours tells what it last did; another may have no handler, and the signal's default is to end a process.
TEST(Launcher, PassesSigusr1OnToWorkersThatHandleItAndGoesOn) {
  Process process(
      lockstep_run_command({"--nproc-per-node", "2", "--", "sh", "-c",
                            "[ $RANK = 0 ] && trap 'echo asked; exit 0' USR1; echo ready $RANK; "
                            "i=0; while [ $i -lt 40 ]; do sleep 0.05; i=$((i + 1)); done; echo end $RANK"}));
  ASSERT_TRUE(process.wait_for_output("ready 0") && process.wait_for_output("ready 1"));
  process.signal(SIGUSR1);
  const Finished run = process.wait();
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.out, "[0] asked"));
  EXPECT_TRUE(has(run.out, "[1] end 1"));
  EXPECT_FALSE(run.out.find("end 0") != std::string::npos);
}

TEST(Launcher, SecondSignalKillsAtOnce) {
  Process process(lockstep_run_command(
      {"--nproc-per-node", "1", "--", "sh", "-c", "trap 'echo asked' INT; echo ready; while :; do sleep 0.05; done"}));
  ASSERT_TRUE(process.wait_for_output("ready"));
  process.signal(SIGINT);
  ASSERT_TRUE(process.wait_for_output("asked"));
  process.signal(SIGINT);
  const Finished run = process.wait();
  EXPECT_EQ(run.status, 128 + SIGINT);
  EXPECT_LT(run.seconds, 3.5);
}

// A batch system signals this process as well as those that pass signals on to it, and workers may have much to save.
TEST(Launcher, SigtermFromTwoSidesLeavesWorkersTimeToSave) {
  Process process(lockstep_run_command({"--nproc-per-node", "1", "--", "sh", "-c",
                                        "trap 'echo asked; sleep 4.5; echo saved; exit 3' TERM; echo ready; "
                                        "while :; do sleep 0.05; done"}));
  ASSERT_TRUE(process.wait_for_output("ready"));
  process.signal(SIGTERM);
  ASSERT_TRUE(process.wait_for_output("asked"));
  process.signal(SIGTERM);
  const Finished run = process.wait();
  EXPECT_EQ(run.status, 128 + SIGTERM);
  EXPECT_TRUE(has(run.out, "saved"));
}

TEST(Launcher, SaysThatItsOutputIsLost) {
  const std::string launcher = LOCKSTEP_RUN_PROGRAM;
  const Finished run =
      Process({"/bin/sh", "-c", launcher + " --nproc-per-node 1 -- echo the result > /dev/full"}).wait();
  EXPECT_EQ(run.status, launcher::kUnwritten);
  EXPECT_TRUE(has(run.err, "what goes to stdout could not all be written: No space left on device"));
}

TEST(Launcher, CtrlCEndsAllWithinFiveSeconds) {
  // Ranks 0 and 1 do not care, one of them with a child; rank 2 is stopped.
  Process process(lockstep_run_command(
      {"--nproc-per-node", "3", "--", "sh", "-c",
       "trap '' INT TERM HUP; sleep 300 & echo pid=$$ pid=$! ready; [ $RANK = 2 ] && kill -STOP $$; wait"}));
  for (const char* rank : {"0", "1", "2"}) ASSERT_TRUE(process.wait_for_output(std::string("[") + rank + "] pid="));
  const auto start = std::chrono::steady_clock::now();
  process.signal(SIGINT);
  const Finished run = process.wait();
  EXPECT_EQ(run.status, 128 + SIGINT);
  const auto pids = numbers_after(run.out, "pid=");
  ASSERT_EQ(pids.size(), 6u);
  for (const int pid : pids) EXPECT_TRUE(wait_until_gone(pid, 1)) << "process " << pid << " is left";
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
}

TEST(Launcher, WorkersThatEndWellWhenAskedAreASuccess) {
  Process process(lockstep_run_command(
      {"--nproc-per-node", "2", "--", "sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"}));
  ASSERT_TRUE(process.wait_for_output("[0] ready") && process.wait_for_output("[1] ready"));
  process.signal(SIGTERM);
  EXPECT_EQ(process.wait().status, 0);
}

TEST(Launcher, LeavesNoOrphanWhenKilled) {
  // Each worker starts a process of its own, which only the guard can reach.
  Process process(lockstep_run_command(
      {"--nproc-per-node", "2", "--", "sh", "-c", "sleep 300 & echo pid=$$ pid=$! ready; trap '' TERM INT HUP; wait"}));
  ASSERT_TRUE(process.wait_for_output("[0] pid=") && process.wait_for_output("[1] pid="));
  process.wait_for_output("ready");
  process.signal(SIGKILL);
  const Finished run = process.wait();
  EXPECT_EQ(run.status, 128 + SIGKILL);
  const auto pids = numbers_after(run.out, "pid=");
  ASSERT_EQ(pids.size(), 4u);
  for (const int pid : pids) EXPECT_TRUE(wait_until_gone(pid)) << "process " << pid << " outlived the launcher";
}

TEST(Launcher, EndsThoughItsGuardIsStopped) {
  // The guard has its name soon after it was started.
  Process process(
      lockstep_run_command({"--nproc-per-node", "1", "--", "sh", "-c",
                            "for try in $(seq 100); do for p in $(cat /proc/$PPID/task/$PPID/children); do "
                            "grep -q lockstep-guard /proc/$p/comm && kill -STOP $p && echo stopped && exit; "
                            "done; sleep 0.05; done; true"}));
  const Finished run = process.wait(20);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.out, "stopped"));
}

TEST(Launcher, TellsOfAWorkerThatIsStopped) {
  Process process(lockstep_run_command({"--nproc-per-node", "1", "--", "sh", "-c",
                                        "(sleep 1; kill -CONT $$) & echo pid=$$; kill -STOP $$; echo resumed"}));
  const Finished run = process.wait(20);
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.out, "resumed"));
  const auto pids = numbers_after(run.out, "pid=");
  ASSERT_EQ(pids.size(), 1u);
  EXPECT_TRUE(has(run.err, "warning: rank 0 (pid " + std::to_string(pids[0]) + ") is stopped"));
}

TEST(Launcher, EndsWhatAWorkerLeavesBehind) {
  const Finished run = run_shell(1, "sleep 300 & echo pid=$!");
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_LT(run.seconds, 5);
  const auto pids = numbers_after(run.out, "pid=");
  ASSERT_EQ(pids.size(), 1u);
  EXPECT_TRUE(wait_until_gone(pids[0]));
}

// Started by a supervisor that closes everything: no pipe or connection may get the number of a standard stream.
TEST(Launcher, MayBeStartedWithItsStreamsClosed) {
  for (const std::string closed : {">&-", "2>&-", "<&- >&- 2>&-"}) {
    const testing::TempDir place;
    const std::string folder = place.path();
    const std::string command =
        LOCKSTEP_RUN_PROGRAM " --nproc-per-node 3 --log-dir " + folder + " -- " + kWorker + " meet " + closed;
    const Finished run = Process({"/bin/sh", "-c", command}, {}).wait(20);
    EXPECT_EQ(run.status, 0) << closed << run.out << run.err;
    for (const std::string rank : {"0", "1", "2"})
      EXPECT_EQ(contents(folder + "/rank" + rank + ".out"), "rank " + rank + " met 3\n") << closed;
  }
  // Without logs what a worker prints is lost, which is a failure; one that prints nothing loses nothing.
  for (const auto& [program, status] : {std::pair("echo the result", launcher::kUnwritten), std::pair("true", 0)}) {
    const Finished run =
        Process({"/bin/sh", "-c", LOCKSTEP_RUN_PROGRAM " --nproc-per-node 1 -- " + std::string(program) + " >&-"})
            .wait();
    EXPECT_EQ(run.status, status) << program << run.err;
  }
}

TEST(Launcher, RestartsTheGroup) {
  const testing::TempDir place;
  const std::string folder = place.path();
  const Finished run =
      lockstep_run({"--nproc-per-node", "3", "--max-restarts", "2", "--log-dir", folder, "--", "sh", "-c",
                    "echo attempt $LOCKSTEP_RESTART_COUNT; [ $LOCKSTEP_RESTART_COUNT -lt 2 ] && "
                    "[ $RANK = 1 ] && exit 6; exec " +
                        kWorker + " meet"});
  EXPECT_EQ(run.status, 0) << run.err;
  EXPECT_TRUE(has(run.err, "starting 3 worker(s) again (restart 2 of 2)"));
  EXPECT_TRUE(has(run.out, "[2] rank 2 met 3"));
  EXPECT_EQ(contents(folder + "/rank1.out"), "attempt 0\nattempt 1\nattempt 2\nrank 1 met 3\n");
}

TEST(Launcher, GivesUpAfterTheLastRestart) {
  const Finished run = run_shell(2, "echo attempt; exit 3", {"--max-restarts", "1"});
  EXPECT_EQ(run.status, 3);
  EXPECT_TRUE(has(run.err, "(restart 1 of 1)"));
  EXPECT_GE(sorted_lines(run.out).size(), 2u);
}

TEST(Launcher, DoesNotRepeatWorkThatIsDoneAndNotWritten) {
  const Finished run = run_shell(2, "echo attempt; exit 73", {"--max-restarts", "2"});
  EXPECT_EQ(run.status, 73);
  EXPECT_TRUE(has(run.err, "has done its work, and could not write all that came of it where it should be"));
  EXPECT_FALSE(run.err.find("again") != std::string::npos) << run.err;
}

TEST(Launcher, DoesNotRepeatAWrongCommandLine) {
  const Finished run = run_shell(2, "echo attempt; exit 2", {"--max-restarts", "6"});
  EXPECT_EQ(run.status, 2);
  EXPECT_LE(sorted_lines(run.out).size(), 2u) << run.out;
  EXPECT_FALSE(has(run.err, "again")) << run.err;
}

TEST(Launcher, NamesTheJobForAllItsAttempts) {
  const std::string out = run_shell(1, "echo $LOCKSTEP_JOB_ID; exit 1", {"--max-restarts", "1"}).out;  // twice
  EXPECT_EQ(out.substr(0, 21), out.substr(21));
  EXPECT_NE(run_shell(1, "echo $LOCKSTEP_JOB_ID").out, out.substr(21));
}

TEST(Launcher, RunLocalStartsCopiesOfTheProgram) {
  const Finished good = Process({kWorker, "spawn", "3"}, {{"LOCKSTEP_TEST_STATUS", "0"}}).wait();
  EXPECT_EQ(good.status, 0) << good.err;
  EXPECT_EQ(good.out.rfind("before\n", 0), 0u) << good.out;
  EXPECT_TRUE(has(good.out, "\nworker 0 of 3\n"));  // rank 0 without a prefix
  EXPECT_TRUE(has(good.out, "[1] worker 1 of 3\n"));
  EXPECT_TRUE(has(good.out, "[2] worker 2 of 3\n"));
  EXPECT_EQ(good.out.substr(good.out.size() - 6), "after\n");
  const Finished bad = Process({kWorker, "spawn", "2"}, {{"LOCKSTEP_TEST_STATUS", "8"}}).wait();
  EXPECT_EQ(bad.status, 8);
  EXPECT_TRUE(has(bad.err, "launcher_worker: rank 1"));
}

}  // namespace
}  // namespace lockstep::launcher_test
