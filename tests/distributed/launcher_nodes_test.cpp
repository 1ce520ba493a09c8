// Several nodes on one machine: one launcher each, all on loopback.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <memory>

#include "launcher_support.h"
#include "lockstep/core/posix.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/wire.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_path.h"

namespace lockstep::launcher_test {
namespace {

using testing::free_port;

const std::string kWorker = LOCKSTEP_LAUNCHER_WORKER;
const std::map<std::string, std::string> kToken{{"LOCKSTEP_TOKEN", "0123456789abcdef0123456789abcdef"}};

bool wait_until_listening(int port) {
  for (int i = 0; i < 400; ++i, ::usleep(50'000)) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool connected = ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (connected) return true;
  }
  return false;
}

std::unique_ptr<Process> node(int rank, int nodes, int port, std::vector<std::string> command,
                              std::vector<std::string> more = {},
                              const std::map<std::string, std::string>& environment = kToken) {
  std::vector<std::string> arguments{
      "--nproc-per-node", "2",         "--nnodes",      std::to_string(nodes), "--node-rank", std::to_string(rank),
      "--master-addr",    "127.0.0.1", "--master-port", std::to_string(port)};
  arguments.insert(arguments.end(), more.begin(), more.end());
  arguments.push_back("--");
  arguments.insert(arguments.end(), command.begin(), command.end());
  return std::make_unique<Process>(lockstep_run_command(arguments), environment);
}

std::vector<std::string> shell(const std::string& script) {
  return {"sh", "-c", script};
}

TEST(LauncherNodes, NumberTheirWorkersThroughAndShareTheStore) {
  const int port = free_port();
  const auto second = node(1, 2, port, {kWorker, "meet"});
  ::usleep(300'000);  // node 1 may be started first
  const auto first = node(0, 2, port, {kWorker, "meet"});
  const Finished a = first->wait(), b = second->wait();
  EXPECT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(b.status, 0) << b.err;
  EXPECT_TRUE(has(a.out, "[0] rank 0 met 4\n"));
  EXPECT_TRUE(has(a.out, "[1] rank 1 met 4\n"));
  EXPECT_TRUE(has(b.out, "[2] rank 2 met 4\n"));
  EXPECT_TRUE(has(b.out, "[3] rank 3 met 4\n"));
}

TEST(LauncherNodes, NodeZeroServesTheStoreUntilAllHaveFinished) {
  const int port = free_port();
  const auto first = node(0, 2, port, shell("exit 0"));
  const auto second =
      node(1, 2, port, shell("sleep 2; LOCKSTEP_RESTART_COUNT=$RANK WORLD_SIZE=1 RANK=0 exec " + kWorker + " meet"));
  const Finished a = first->wait(), b = second->wait();
  EXPECT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(b.status, 0) << b.err;
  EXPECT_GT(a.seconds, 1.5);
}

TEST(LauncherNodes, AFailureOnOneEndsAll) {
  const int port = free_port();
  const auto first = node(0, 2, port, shell("sleep 60"));
  const auto second = node(1, 2, port, shell("sleep 0.5; [ $RANK = 3 ] && { echo the cause >&2; exit 7; }; sleep 60"));
  const Finished a = first->wait(), b = second->wait();
  EXPECT_EQ(a.status, 7) << a.err;
  EXPECT_EQ(b.status, 7) << b.err;
  EXPECT_TRUE(has(a.err, "rank 3 (pid "));
  EXPECT_TRUE(has(a.err, "on node 1 failed first: it exited with status 7"));
  EXPECT_TRUE(has(a.err, "the cause"));
  EXPECT_LT(a.seconds, 15);
}

TEST(LauncherNodes, NameTheRankThatIsTheCauseWhicheverNodeItIsOn) {
  for (const int cause : {1, 3}) {
    const int port = free_port();
    const auto command = shell("exec " LOCKSTEP_FAULT_WORKER " env:// $RANK $WORLD_SIZE 10000 throw_own " +
                               std::to_string(cause) + " auto");
    const auto zero = node(0, 2, port, command);
    const auto one = node(1, 2, port, command);
    for (const auto& each : {zero->wait(), one->wait()}) {
      EXPECT_EQ(each.status, 3);
      EXPECT_TRUE(has(each.err, "lockstep-run: rank " + std::to_string(cause) + " (pid "));
      EXPECT_EQ(each.err.find("failed first"), each.err.rfind("failed first")) << each.err;
      EXPECT_TRUE(has(each.err, "out of milk"));
    }
  }
}

TEST(LauncherNodes, RestartTogether) {
  const int port = free_port();
  const auto script =
      shell("[ $LOCKSTEP_RESTART_COUNT = 0 ] && { [ $RANK = 2 ] && exit 6; sleep 60; }; exec " + kWorker + " meet");
  const auto first = node(0, 2, port, script, {"--max-restarts", "1"});
  const auto second = node(1, 2, port, script, {"--max-restarts", "1"});
  const Finished a = first->wait(), b = second->wait();
  EXPECT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(b.status, 0) << b.err;
  EXPECT_TRUE(has(a.out, "rank 0 met 4"));
  EXPECT_TRUE(has(b.out, "rank 3 met 4"));
}

int times(const std::string& text, const std::string& part) {
  int count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Long enough for the launcher's next look at the other nodes.
const std::string kSecondLife = "echo start $LOCKSTEP_RESTART_COUNT of $WORLD_SIZE; sleep 1.3";

TEST(LauncherNodes, ALostNodeCostsOneRestart) {
  const int port = free_port();
  const std::string second_life = "[ $LOCKSTEP_RESTART_COUNT = 0 ] || { " + kSecondLife + "; exit 0; }; ";
  const std::vector<std::string> elastic{"--min-nproc", "4", "--max-restarts", "1", "--node-timeout", "1.5"};
  const auto first = node(0, 3, port, shell(second_life + "echo ready; sleep 60"), elastic);
  const auto lost = node(1, 3, port, shell("echo ready; sleep 60"), elastic);
  // Its workers take their time to end, in which node 0 looks for the members of a group that is still being formed.
  const auto third =
      node(2, 3, port, shell(second_life + "trap 'sleep 1.3; exit 1' TERM; echo ready; while :; do sleep 0.05; done"),
           elastic);
  for (const auto* each : {&first, &lost, &third}) ASSERT_TRUE((*each)->wait_for_output("ready"));
  lost->signal(SIGKILL);
  const Finished a = first->wait(), c = third->wait();
  EXPECT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(c.status, 0) << c.err;
  EXPECT_EQ(times(a.err, "starting 4 worker(s) again"), 1) << a.err;
  EXPECT_TRUE(has(a.err, "(restart 1 of 1)"));
  EXPECT_EQ(times(a.out + c.out, "start 1 of 4"), 4) << a.out << c.out;
}

TEST(LauncherNodes, NodeZeroStartedAgainGoesOnCounting) {
  const int port = free_port();
  const auto script =
      shell("[ $LOCKSTEP_RESTART_COUNT = 0 ] && { echo elastic $LOCKSTEP_ELASTIC; sleep 60; }; " + kSecondLife);
  const std::vector<std::string> elastic{"--min-nproc", "4", "--max-restarts", "1"};
  auto first = node(0, 2, port, script, elastic);
  const auto second = node(1, 2, port, script, elastic);
  ASSERT_TRUE(first->wait_for_output("elastic 1") && second->wait_for_output("elastic 1"));
  first->signal(SIGKILL);
  EXPECT_EQ(first->wait().status, 128 + SIGKILL);
  first = node(0, 2, port, script, elastic);
  const Finished a = first->wait(), b = second->wait();
  EXPECT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(b.status, 0) << b.err;
  EXPECT_EQ(times(a.out + b.out, "start 1 of 4"), 4) << a.out << b.out;
  EXPECT_TRUE(has(a.err, "starting 4 worker(s) again (restart 1 of 1)"));
}

/// Where a script waits with `until`, and goes on when the file is made.
class Signal {
 public:
  std::string until() const { return "while [ ! -e " + path_.text() + " ]; do sleep 0.05; done; "; }
  std::string give() const { return "touch " + path_.text() + "; "; }
  void operator()() const { std::ofstream(path_.text()).put('\n'); }

 private:
  testing::TemporaryPath path_;
};

// Longer than until a launcher's next look at the others.
constexpr int kNextLook = 1'300'000;

TEST(LauncherNodes, ASecondLauncherOfANodeIsRefusedAlone) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"--max-restarts", "1"}, {"--max-restarts", "1", "--min-nproc", "1"}}) {
    const int port = free_port();
    const Signal go;
    const auto script = shell("echo ready; " + go.until());
    const auto first = node(0, 2, port, script, more);
    const auto second = node(1, 2, port, script, more);
    ASSERT_TRUE(first->wait_for_output("ready") && second->wait_for_output("ready"));
    const Finished again = node(1, 2, port, script, more)->wait();
    EXPECT_EQ(again.status, 2) << again.err;
    EXPECT_TRUE(has(again.err, "a launcher with --node-rank 1 has joined this job already"));
    ::usleep(kNextLook);
    go();
    for (const Finished& each : {first->wait(), second->wait()}) {
      EXPECT_EQ(each.status, 0) << each.err;
      EXPECT_EQ(times(each.out, "ready"), 2) << each.out;
    }
  }
}

TEST(LauncherNodes, ALauncherThatDiedIsTakenInAgain) {
  const int port = free_port();
  const Signal go;
  const auto script = shell("echo of $WORLD_SIZE; " + go.until());
  const std::vector<std::string> elastic{"--min-nproc", "2", "--max-restarts", "3", "--node-timeout", "2"};
  const auto first = node(0, 2, port, script, elastic);
  auto second = node(1, 2, port, script, elastic);
  ASSERT_TRUE(first->wait_for_output("of 4") && second->wait_for_output("of 4"));
  second->signal(SIGKILL);
  ASSERT_TRUE(first->wait_for_output("of 2"));
  second = node(1, 2, port, script, elastic);
  ASSERT_TRUE(second->wait_for_output("of 4"));
  go();
  for (const Finished& each : {first->wait(), second->wait()}) EXPECT_EQ(each.status, 0) << each.err;
}

TEST(LauncherNodes, WhatWasRefusedDoesNotEndTheNextGeneration) {
  const int port = free_port();
  const Signal go;
  const auto script = shell("[ $LOCKSTEP_RESTART_COUNT = 0 ] || exit 0; echo ready; " + go.until() +
                            "[ $RANK = 2 ] && exit 6; sleep 60");
  const std::vector<std::string> elastic{"--min-nproc", "3", "--max-restarts", "1"};
  const auto first = node(0, 2, port, script, elastic);
  const auto second = node(1, 2, port, script, elastic);
  ASSERT_TRUE(first->wait_for_output("ready") && second->wait_for_output("ready"));
  const Finished other = node(1, 2, port, script, {"--min-nproc", "2", "--max-restarts", "1"})->wait();
  EXPECT_EQ(other.status, 2) << other.err;
  EXPECT_TRUE(has(other.err, "started differently"));
  go();
  for (const Finished& each : {first->wait(), second->wait()}) {
    EXPECT_EQ(each.status, 0) << each.err;
    EXPECT_TRUE(has(each.err, "starting 3 worker(s) again (restart 1 of 1)"));
  }
}

TEST(LauncherNodes, NameTheNodeWhoseLauncherWasKilled) {
  const int port = free_port();
  const auto command = shell("exec " LOCKSTEP_FAULT_WORKER " env:// $RANK $WORLD_SIZE 10000 long 0 auto");
  std::vector<std::unique_ptr<Process>> nodes;
  for (const int rank : {0, 1, 2}) nodes.push_back(node(rank, 3, port, command));
  for (const auto& each : nodes) ASSERT_TRUE(each->wait_for_output("ready"));
  nodes[1]->signal(SIGKILL);
  for (const int rank : {0, 2}) {
    const Finished each = nodes[static_cast<std::size_t>(rank)]->wait(15);
    EXPECT_NE(each.status, 0);
    EXPECT_TRUE(has(each.err, "lockstep-run: node 1 is lost"));
    EXPECT_EQ(each.err.find("failed first"), std::string::npos) << each.err;
  }
}

TEST(LauncherNodes, NameTheNodeThatWasToldToEnd) {
  const int port = free_port();
  const Signal stop;
  // Workers that have agreed to stop end alike, wherever the signal came.
  const auto zero = node(0, 2, port, shell("echo ready; " + stop.until() + "exit 143"));
  const auto one =
      node(1, 2, port,
           shell("trap '" + stop.give() + "sleep 1; exit 143' TERM; echo ready; " + "while :; do sleep 0.05; done"));
  ASSERT_TRUE(zero->wait_for_output("ready") && one->wait_for_output("ready"));
  one->signal(SIGTERM);
  const Finished a = zero->wait(), b = one->wait();
  EXPECT_EQ(a.status, 128 + SIGTERM);
  EXPECT_EQ(b.status, 128 + SIGTERM);
  EXPECT_TRUE(has(a.err, "node 1 was ended by SIGTERM"));
  EXPECT_EQ((a.err + b.err).find("failed first"), std::string::npos) << a.err << b.err;
}

TEST(LauncherNodes, AStallShorterThanTheNodeTimeoutEndsNothing) {
  const int port = free_port();
  const auto script = shell("echo ready; sleep 7.7");
  const auto first = node(0, 2, port, script, {"--node-timeout", "20"});
  const auto second = node(1, 2, port, script, {"--node-timeout", "20"});
  ASSERT_TRUE(first->wait_for_output("ready") && second->wait_for_output("ready"));
  first->signal(SIGSTOP);
  ::usleep(7'000'000);  // longer than a request of 5 s that begins within a second
  first->signal(SIGCONT);
  const Finished a = first->wait(), b = second->wait();
  EXPECT_EQ(a.status, 0) << a.err;
  EXPECT_EQ(b.status, 0) << b.err;
}

TEST(LauncherNodes, EndWhenNodeZeroIsKilled) {
  const int port = free_port();
  const auto first = node(0, 2, port, shell("echo ready; sleep 60"));
  const auto second = node(1, 2, port, shell("echo ready; sleep 60"));
  ASSERT_TRUE(first->wait_for_output("ready") && second->wait_for_output("ready"));
  first->signal(SIGKILL);
  const Finished b = second->wait();
  EXPECT_EQ(b.status, 1);
  EXPECT_LT(b.seconds, 20);
  EXPECT_TRUE(has(b.err, "the store that node 0's launcher serves is gone"));
}

TEST(LauncherNodes, EndWhenOneIsInterrupted) {
  const int port = free_port();
  const auto first = node(0, 2, port, shell("echo ready; sleep 60"));
  const auto second = node(1, 2, port, shell("echo ready; sleep 60"));
  ASSERT_TRUE(first->wait_for_output("ready") && second->wait_for_output("ready"));
  second->signal(SIGINT);
  const Finished a = first->wait(), b = second->wait();
  EXPECT_EQ(a.status, 128 + SIGINT) << a.err;
  EXPECT_EQ(b.status, 128 + SIGINT) << b.err;
  EXPECT_TRUE(has(a.err, "node 1 was ended by SIGINT"));
}

TEST(LauncherNodes, CanBeInterruptedWhileWaitingForTheOthers) {
  for (const int rank : {0, 1}) {
    const auto alone = node(rank, 2, free_port(), shell("exit 0"));
    ::usleep(500'000);
    alone->signal(SIGINT);
    const Finished run = alone->wait(10);
    EXPECT_EQ(run.status, 128 + SIGINT) << run.err;
  }
}

// A store whose greeting comes later than the first try to reach it lasts.
TEST(LauncherNodes, WaitForAGreetingThatHasALongWay) {
  const FileDescriptor listener = distributed::listen_on("127.0.0.1", 0);
  const auto alone = node(1, 2, distributed::bound_port(listener.get()), shell("exit 0"));
  bool answered = false;
  for (int tries = 0; tries < 3 && !answered; ++tries) {
    pollfd ready{listener.get(), POLLIN, 0};
    ASSERT_EQ(::poll(&ready, 1, 10'000), 1);
    const FileDescriptor client(::accept(listener.get(), nullptr, nullptr));
    ::usleep(1'200'000);
    const std::string greeting =
        std::string(distributed::wire::kHello) + std::string(distributed::wire::kNonceBytes, 'n');
    ::send(client.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL);
    char byte = 0;
    answered = ::recv(client.get(), &byte, 1, 0) == 1;
  }
  EXPECT_TRUE(answered);
  alone->signal(SIGINT);
  alone->wait();
}

// As a proxy does whose backend is not up yet, or a program of another kind.
TEST(LauncherNodes, TryAgainWhereConnectionsAreClosedAndNameThePlace) {
  const FileDescriptor listener = distributed::listen_on("127.0.0.1", 0);
  const int port = distributed::bound_port(listener.get());
  const auto alone = node(1, 2, port, shell("exit 0"), {"--join-timeout", "1"});
  int taken = 0;
  while (is_running(alone->pid()))
    if (pollfd ready{listener.get(), POLLIN, 0}; ::poll(&ready, 1, 20) == 1)
      taken += FileDescriptor(::accept(listener.get(), nullptr, nullptr)) ? 1 : 0;
  EXPECT_GE(taken, 3);
  const Finished end = alone->wait();
  EXPECT_EQ(end.status, 1);
  EXPECT_TRUE(has(end.err, "was not reached at 127.0.0.1:" + std::to_string(port) + " within 1 s"));
  EXPECT_TRUE(has(end.err, "closes them before it says anything; is another program on that port"));
  EXPECT_TRUE(has(end.err, "--join-timeout waits longer"));
}

TEST(LauncherNodes, MustBeStartedAlike) {
  const int port = free_port();
  const auto first = node(0, 2, port, shell("exit 0"));
  const auto second = node(1, 2, port, shell("exit 0"), {"--max-restarts", "3"});
  const Finished a = first->wait(), b = second->wait();
  EXPECT_TRUE(a.status == 2 || b.status == 2) << a.status << " and " << b.status;  // whichever came second
  EXPECT_NE(a.status, 0);
  EXPECT_NE(b.status, 0);
  EXPECT_TRUE(has(a.err + b.err, "started differently"));
}

TEST(LauncherNodes, NeedTheSameToken) {
  const int port = free_port();
  const auto first = node(0, 2, port, shell("exit 0"));
  const auto second = node(1, 2, port, shell("exit 0"), {}, {{"LOCKSTEP_TOKEN", "another-token-of-fair-length"}});
  const Finished b = second->wait();
  EXPECT_EQ(b.status, 1);
  EXPECT_TRUE(has(b.err, "token"));
  first->signal(SIGINT);
  first->wait();
}

TEST(LauncherNodes, NameAPortInUse) {
  const int port = free_port();
  const auto first = node(0, 2, port, shell("exit 0"));
  ASSERT_TRUE(wait_until_listening(port));
  const auto again = node(0, 2, port, shell("exit 0"));
  const Finished b = again->wait();
  EXPECT_EQ(b.status, 1);
  EXPECT_TRUE(has(b.err, std::to_string(port)));
  first->signal(SIGINT);
  first->wait();
}

}  // namespace
}  // namespace lockstep::launcher_test
