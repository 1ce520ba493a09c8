// Jobs on several machines, which are network namespaces with addresses of their own and a router between them.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

#include "tests/cluster/cluster_support.h"
#include "tests/cluster/hosts.h"
#include "tests/distributed/launcher_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;
using launcher_test::Finished;
using launcher_test::Process;
using Environment = std::map<std::string, std::string>;

const std::string kPort = "29577";
const Environment kToken{{"LOCKSTEP_TOKEN", "0123456789abcdef0123456789abcdef"}};
constexpr double kLimit = 120;  // seconds

Environment join(Environment a, const Environment& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

class Nodes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
    if (!hosts_.works()) GTEST_SKIP() << "network namespaces cannot be made here";
  }

  std::unique_ptr<Process> start(int host, const Arguments& command, const Environment& environment = kToken) {
    return std::make_unique<Process>(Arguments{"/usr/bin/env"} + hosts_.inside(host) + command, environment);
  }
  /// lockstep-run of one node.
  Arguments launcher(int node, int nodes, int workers, const Arguments& more = {}) const {
    return Arguments{
               LOCKSTEP_RUN,  "--nproc-per-node",   std::to_string(workers), "--nnodes",        std::to_string(nodes),
               "--node-rank", std::to_string(node), "--master-addr",         hosts_.address(0), "--master-port",
               kPort} +
           more + Arguments{"--"};
  }
  /// What `ranks` processes of this machine say without any namespaces.
  static std::string on_one_machine(int ranks) {
    const ProcessResult result =
        run_process(Arguments{LOCKSTEP_RUN, "--nproc-per-node", std::to_string(ranks), "--"} + training_program(20),
                    kClean, std::chrono::seconds(120));
    EXPECT_EQ(result.status, 0) << result.err;
    EXPECT_NE(outcome(result.out), "") << result.out;
    return outcome(result.out);
  }
  static void expect_well(std::vector<std::unique_ptr<Process>>& nodes, const std::string& expected) {
    std::string out, err;
    for (const auto& node : nodes) {
      const Finished finished = node->wait(kLimit);
      EXPECT_EQ(finished.status, 0) << finished.err;
      out += finished.out;
      err += finished.err;
    }
    EXPECT_EQ(outcome(out), expected) << out << err;
    EXPECT_EQ(out.find("result: "), out.rfind("result: ")) << out;
  }

  Hosts hosts_{3};
};

TEST_F(Nodes, ThreeWithTwoRanksEachTrainAsOne) {
  const std::string expected = on_one_machine(6);
  std::vector<std::unique_ptr<Process>> nodes;
  for (const int node : {2, 0, 1}) nodes.push_back(start(node, launcher(node, 3, 2) + training_program(20)));
  expect_well(nodes, expected);
}

TEST_F(Nodes, RanksMeetByThemselvesToo) {
  const std::string expected = on_one_machine(2);
  std::vector<std::unique_ptr<Process>> ranks;
  for (const int rank : {1, 0})
    ranks.push_back(start(rank, training_program(20),
                          join(kToken, {{"RANK", std::to_string(rank)},
                                        {"WORLD_SIZE", "2"},
                                        {"LOCAL_RANK", "0"},
                                        {"LOCAL_WORLD_SIZE", "1"},
                                        {"MASTER_ADDR", hosts_.address(0)},
                                        {"MASTER_PORT", kPort}})));
  expect_well(ranks, expected);
}

TEST_F(Nodes, MeetUnderTorchrun) {
  if (run_process({"torchrun", "--help"}).status != 0) GTEST_SKIP() << "no torchrun that works is here";
  const std::string expected = on_one_machine(2);
  TemporaryDirectory logs;
  std::vector<std::unique_ptr<Process>> nodes;
  for (const int node : {0, 1})
    nodes.push_back(
        start(node, Arguments{"torchrun", "--no_python", "--nnodes", "2", "--node_rank", std::to_string(node),
                              "--nproc_per_node", "1", "--master_addr", hosts_.address(0), "--master_port", kPort,
                              "--redirects", "1", "--tee", "1", "--log_dir", logs.file("node" + std::to_string(node))} +
                        training_program(20)));
  expect_well(nodes, expected);
}

TEST_F(Nodes, WithoutATokenNothingStarts) {
  const Finished finished = start(0, launcher(0, 2, 1) + training_program(20), {{"LOCKSTEP_TOKEN", ""}})->wait(20);
  EXPECT_EQ(finished.status, 2);
  EXPECT_TRUE(launcher_test::has(finished.err, "LOCKSTEP_TOKEN"));
}

TEST_F(Nodes, OneThatIsKilledEndsTheOthers) {
  const Arguments forever{"/bin/sh", "-c", "echo up; exec sleep 600"};
  const Arguments soon{"--node-timeout", "2"};
  std::vector<std::unique_ptr<Process>> nodes;
  for (const int node : {0, 1, 2}) nodes.push_back(start(node, launcher(node, 3, 1, soon) + forever));
  for (const auto& node : nodes) ASSERT_TRUE(node->wait_for_output("up"));
  const auto start = std::chrono::steady_clock::now();
  nodes[2]->signal(SIGKILL);
  EXPECT_EQ(nodes[2]->wait(kLimit).status, 128 + SIGKILL);
  for (const int node : {0, 1}) {
    const Finished finished = nodes[static_cast<std::size_t>(node)]->wait(kLimit);
    EXPECT_NE(finished.status, 0);
    EXPECT_TRUE(launcher_test::has(finished.err, "node 2's launcher has given no sign of life for 2 s"));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
}

}  // namespace
}  // namespace lockstep
