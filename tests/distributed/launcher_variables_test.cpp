// What a rank reads from the variables of launchers that are not ours.

#include <gtest/gtest.h>

#include <string>
#include <vector>

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
  EXPECT_EQ(read_launcher({{"SLURM_PROCID", "0"}}).launcher, "");
  EXPECT_EQ(read_launcher({}).launcher, "");
}

// Of salloc, where the shell itself runs in the allocation; what it starts is alone, too.
TEST(LauncherVariables, NorIsTheShellOfAnAllocation) {
  for (const char* step : {"4294967290", "4294967291"}) {
    const LauncherVariables found =
        read_launcher({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_ID", step}});
    EXPECT_EQ(found.launcher, "") << step;
    EXPECT_EQ(found.incomplete, "") << step;
  }
}

/// What tells that there are several processes, and not enough to find them.
struct Part {
  const char* name;
  Environment environment;
  std::vector<const char*> words;
};

class PartOfALauncher : public ::testing::TestWithParam<Part> {};

INSTANTIATE_TEST_SUITE_P(
    Each, PartOfALauncher,
    ::testing::Values(
        Part{"OpenMpisRank",
             {{"OMPI_COMM_WORLD_RANK", "1"}},
             {"OMPI_COMM_WORLD_RANK is '1'", "OMPI_COMM_WORLD_SIZE is missing", "start the program with mpirun"}},
        Part{"OpenMpisSize",
             {{"OMPI_COMM_WORLD_SIZE", "2"}},
             {"OMPI_COMM_WORLD_SIZE is '2'", "OMPI_COMM_WORLD_RANK is missing", "start the program with mpirun"}},
        Part{"SlurmsRankWithoutAStep",
             {{"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "8"}},
             {"SLURM_PROCID is '5'", "SLURM_STEP_ID is missing", "start the program with srun"}},
        Part{"SlurmsRankAlone",
             {{"SLURM_PROCID", "5"}},
             {"SLURM_PROCID is '5'", "SLURM_STEP_ID is missing", "to train in this process alone, unset SLURM_PROCID"}},
        Part{"SlurmsStepWithoutASize",
             {{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "0"}},
             {"SLURM_PROCID is '0'", "SLURM_NTASKS is missing", "set RANK and WORLD_SIZE"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(PartOfALauncher, IsAnErrorUnlessTheProgramKnowsItsPlace) {
  const RendezvousOptions options{.timeout = Milliseconds(300)};
  const std::string error = testing::error_of([&] { rendezvous(options, GetParam().environment); });
  for (const char* word : GetParam().words) EXPECT_NE(error.find(word), std::string::npos) << word << " in: " << error;
  // What programs go by when nobody says whether they are to join a job.
  const LauncherVariables found = read_launcher(GetParam().environment);
  EXPECT_FALSE(found.launcher.empty());
  EXPECT_TRUE((found.rank && !found.world_size) || found.world_size.value_or(1) > 1);
  RendezvousOptions told = options;
  told.url = "tcp://127.0.0.1:0";
  told.rank = 0;
  told.world_size = 1;
  EXPECT_EQ(rendezvous(told, GetParam().environment).world_size, 1);
}

TEST(LauncherVariables, AnAddressMayBeWrittenAsInUrls) {
  for (const char* address : {"::1", "[::1]"})
    EXPECT_EQ(read_launcher({{"MASTER_ADDR", address}}).master_addr, "::1") << address;
}

}  // namespace
}  // namespace lockstep::distributed
