// The MPI backend under mpirun, where this machine has one.

#include "lockstep/distributed/mpi/mpi.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "lockstep/distributed/store/hash_store.h"
#include "tests/support/subprocess.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::ProcessResult;
using testing::run_process;

// Open MPI leaks: in libmpi, libopen-pal and libpmix, and in plugins that it has unloaded by the time LeakSanitizer
// looks. The addresses of the latter belong to no module any more, or seem to belong to whichever library lies below
// them, so they cannot be suppressed by name, and a rank's leaks are not looked for at all. Those of our own
// collectives are found by the tests of the other backends, which share them.
std::string sanitizer_options() {
  const char* inherited = std::getenv("ASAN_OPTIONS");
  return (inherited ? std::string(inherited) + ":" : "") + "detect_leaks=0";
}

// mpirun refuses root and more ranks than cores unless told; what a launcher of the test itself has left is not for it.
const testing::ProcessEnvironment kEnvironment = {{"ASAN_OPTIONS", sanitizer_options()},
                                                  {"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                  {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                  {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                                                  {"OMPI_MCA_mpi_yield_when_idle", "1"},
                                                  {"RANK", ""},
                                                  {"WORLD_SIZE", ""},
                                                  {"MASTER_ADDR", ""},
                                                  {"MASTER_PORT", ""}};

class MpiTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!mpi::is_available()) GTEST_SKIP() << "this build has no MPI";
    if (run_process({"mpirun", "--version"}, kEnvironment, std::chrono::seconds(30)).status != 0)
      GTEST_SKIP() << "this machine has no mpirun that works";
  }
  static ProcessResult run(int ranks, const std::string& scenario) {
    return run_process({"mpirun", "-n", std::to_string(ranks), LOCKSTEP_MPI_WORKER, scenario}, kEnvironment,
                       std::chrono::seconds(100));
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, MpiTest, ::testing::Values(2, 4));

void expect_all_well(const ProcessResult& result, int ranks) {
  EXPECT_EQ(result.status, 0) << result.out << result.err;
  for (int r = 0; r < ranks; ++r) {
    const std::string line = "rank " + std::to_string(r) + " of " + std::to_string(ranks) + " on mpi: well";
    EXPECT_NE(result.out.find(line), std::string::npos) << result.out << result.err;
  }
}

TEST_P(MpiTest, CollectivesUnderMpirun) {
  expect_all_well(run(GetParam(), "collectives"), GetParam());
}

// Of MPI's tags there are fewer than of ours, so that different messages share one (Note [MPI messages]).
TEST_P(MpiTest, MessagesUnderOneOfItsTagsDoNotMix) {
  expect_all_well(run(GetParam(), "tags"), GetParam());
}

TEST_P(MpiTest, ARankThatIsLateIsNamed) {
  const ProcessResult result = run(GetParam(), "late");
  EXPECT_NE(result.status, 0);
  EXPECT_NE(result.out.find("timed out waiting for rank 1"), std::string::npos) << result.out << result.err;
  EXPECT_NE(result.out.find("all_reduce #"), std::string::npos) << result.out;
}

TEST(Mpi, SaysHowToStartIt) {
  if (std::getenv("OMPI_COMM_WORLD_RANK")) GTEST_SKIP() << "this test runs under mpirun itself";
  const std::string error =
      error_of([] { mpi::make_process_group(std::make_shared<HashStore>(), {.rank = 0, .world_size = 2}); });
  const char* expected = mpi::is_available() ? "start the job as mpirun -n 2 PROGRAM" : "this build has no MPI";
  EXPECT_NE(error.find(expected), std::string::npos) << error;
}

}  // namespace
}  // namespace lockstep::distributed
