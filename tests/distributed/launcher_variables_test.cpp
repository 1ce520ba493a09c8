// What a rank reads from the variables of launchers that are not ours.

#include <gtest/gtest.h>

#include "lockstep/distributed/rendezvous/rendezvous.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

TEST(LauncherVariables, Slurm) {
  const LauncherVariables found = read_launcher({{"SLURM_PROCID", "5"},
                                                 {"SLURM_NTASKS", "8"},
                                                 {"SLURM_LOCALID", "1"},
                                                 {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                                                 {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                                                 {"SLURM_JOB_ID", "77"},
                                                 {"SLURM_STEP_ID", "0"}});
  EXPECT_EQ(found.launcher, "Slurm");
  EXPECT_EQ(found.rank, 5);
  EXPECT_EQ(found.world_size, 8);
  EXPECT_EQ(found.local_rank, 1);
  EXPECT_EQ(found.local_world_size, 4);
  EXPECT_EQ(found.first_node, "gpu03");
  ASSERT_TRUE(found.derived_port);
  EXPECT_GE(*found.derived_port, 20'000);
  EXPECT_LT(*found.derived_port, 30'000);
}

TEST(LauncherVariables, SlurmNodeLists) {
  const auto first = [](const char* list) {
    return read_launcher(
               {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}, {"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NODELIST", list}})
        .first_node;
  };
  EXPECT_EQ(first("alpha"), "alpha");
  EXPECT_EQ(first("alpha,beta[1-3]"), "alpha");
  EXPECT_EQ(first("node[007,9-11]"), "node007");
  EXPECT_EQ(first("node[9]"), "node9");
}

TEST(LauncherVariables, ANumberThatNoTaskHasIsAnErrorWithoutAStepToo) {
  for (const Environment& more : {Environment{}, Environment{{"SLURM_STEP_ID", "0"}}}) {
    Environment environment{{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "2"}};
    environment.insert(more.begin(), more.end());
    const std::string error = testing::error_of([&] { read_launcher(environment); });
    EXPECT_NE(error.find("SLURM_PROCID is '5', and SLURM_NTASKS is '2'; expected 0 to 1"), std::string::npos) << error;
  }
}

TEST(LauncherVariables, ABatchScriptIsNoStep) {
  EXPECT_EQ(read_launcher({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).launcher, "");
  EXPECT_EQ(read_launcher({}).launcher, "");
}

}  // namespace
}  // namespace lockstep::distributed
