// lockstep-doctor on this machine as it is, and on one with something wrong.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lockstep/distributed/job/job.h"
#include "lockstep/distributed/store/socket.h"
#include "tests/support/subprocess.h"

namespace lockstep {
namespace {

using testing::ProcessEnvironment;
using testing::ProcessResult;
using testing::run_process;
using Json = nlohmann::json;

ProcessResult doctor(const std::vector<std::string>& arguments, const ProcessEnvironment& environment = {},
                     std::vector<std::string> command = {}) {
  command.push_back(LOCKSTEP_DOCTOR);
  command.insert(command.end(), arguments.begin(), arguments.end());
  // Open MPI leaks, which LeakSanitizer would call a failure of its ranks.
  ProcessEnvironment all = {
      {"MASTER_PORT", ""}, {"LOCKSTEP_INTERFACE", ""}, {"GLOO_SOCKET_IFNAME", ""}, {"ASAN_OPTIONS", "detect_leaks=0"}};
  all.insert(all.end(), environment.begin(), environment.end());
  return run_process(command, all, std::chrono::seconds(100));
}

/// Its report. Whatever failed must say what to do.
Json examine(const ProcessResult& result) {
  const Json report = Json::parse(result.out, nullptr, false);
  EXPECT_TRUE(report.is_object()) << result.out << result.err;
  if (!report.is_object()) return {};
  int failures = 0;
  for (const Json& finding : report["findings"])
    if (finding["verdict"] == "failed") {
      ++failures;
      EXPECT_FALSE(finding.value("remedy", "").empty()) << finding;
      EXPECT_FALSE(finding.value("found", "").empty()) << finding;
    }
  EXPECT_EQ(report["failures"], failures);
  EXPECT_EQ(report["ok"], failures == 0);
  EXPECT_EQ(result.status, failures == 0 ? 0 : 1);
  return report;
}

/// The finding of that name; null if there is none.
Json find(const Json& report, const std::string& area, const std::string& what) {
  for (const Json& finding : report["findings"])
    if (finding["area"] == area && finding["what"] == what) return finding;
  return {};
}

::testing::AssertionResult failed(const Json& report, const std::string& area, const std::string& what,
                                  const std::string& remedy) {
  const Json finding = find(report, area, what);
  if (finding.is_object() && finding["verdict"] == "failed" &&
      finding["remedy"].get<std::string>().find(remedy) != std::string::npos)
    return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << report.dump(2);
}

TEST(Doctor, FindsAMachineThatRunsTheseTestsWell) {
  const Json report = examine(doctor({"--json"}));
  std::set<std::string> areas;
  for (const Json& finding : report["findings"]) areas.insert(finding["area"]);
  for (const char* area :
       {"devices", "libraries", "limits", "interfaces", "ports", "peer access", "shared memory", "all-reduce"})
    EXPECT_TRUE(areas.contains(area)) << area;
  const Json blas = find(report, "libraries", "BLAS");
  ASSERT_TRUE(blas.is_object());
  // No program has it loaded, so that it must have been opened to say which it is.
  if (blas["verdict"] == "ok") {
    EXPECT_NE(blas["found"], "part of this build");
  }
  for (const std::string& backend : distributed::available_backends()) {
    const Json finding = find(report, "all-reduce", backend);
    ASSERT_TRUE(finding.is_object()) << backend;
    if (backend == "nccl") {  // not tried from here
      EXPECT_EQ(finding["verdict"], "note") << finding;
      continue;
    }
    if (backend == "mpi" && finding["verdict"] == "failed") continue;  // a build with MPI on a machine without mpirun
    EXPECT_EQ(finding["verdict"], "ok") << finding;
    EXPECT_NE(finding["found"].get<std::string>().find("1 MB between 2 processes in"), std::string::npos) << finding;
  }
  EXPECT_EQ(find(report, "ports", "store")["verdict"], "ok");
  EXPECT_EQ(find(report, "shared memory", "segment")["verdict"], "ok");
}

TEST(Doctor, PrintsALineForEachFinding) {
  const ProcessResult result = doctor({});
  EXPECT_NE(result.out.find("ok      ports          store"), std::string::npos) << result.out;
  EXPECT_EQ(result.status == 0, result.out.ends_with("all is well\n")) << result.out;
}

TEST(Doctor, NamesAPortThatIsTaken) {
  const FileDescriptor listener = distributed::listen_on("127.0.0.1", 0);
  const std::string port = std::to_string(distributed::bound_port(listener.get()));
  for (const Json& report :
       {examine(doctor({"--json", "--port", port})), examine(doctor({"--json"}, {{"MASTER_PORT", port}}))})
    EXPECT_TRUE(failed(report, "ports", "port " + port, "choose another port (MASTER_PORT)"));
}

TEST(Doctor, NamesAMachineThatIsNotReached) {
  const int port = distributed::bound_port(distributed::listen_on("127.0.0.1", 0).get());
  const auto start = std::chrono::steady_clock::now();
  const Json report =
      examine(doctor({"--json", "--connect", "127.0.0.1", "--port", std::to_string(port), "--timeout", "1"}));
  EXPECT_TRUE(failed(report, "ports", "127.0.0.1:" + std::to_string(port), "start rank 0 or the launcher"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Doctor, NamesAnInterfaceThatIsNotThere) {
  const Json report = examine(doctor({"--json"}, {{"LOCKSTEP_INTERFACE", "nosuch0"}}));
  EXPECT_TRUE(failed(report, "interfaces", "LOCKSTEP_INTERFACE", "unset it"));
  if (find(report, "all-reduce", "gloo").is_object()) {
    EXPECT_TRUE(failed(report, "all-reduce", "gloo", "LOCKSTEP_INTERFACE chooses"));
    EXPECT_NE(find(report, "all-reduce", "gloo")["found"].get<std::string>().find("'nosuch0' is neither"),
              std::string::npos);
  }
}

TEST(Doctor, NamesALoopbackThatIsDown) {
  const std::vector<std::string> apart = {"unshare", "--net"};
  if (run_process({"unshare", "--net", "true"}, {}, std::chrono::seconds(10)).status != 0)
    GTEST_SKIP() << "network namespaces cannot be made here";
  const Json report = examine(doctor({"--json", "--timeout", "1"}, {}, apart));
  EXPECT_TRUE(failed(report, "interfaces", "loopback", "ip link set lo up"));
  EXPECT_TRUE(failed(report, "ports", "store", "ip link set lo up"));
  EXPECT_TRUE(failed(report, "all-reduce", "shm", "see"));
}

TEST(Doctor, NamesALimitThatIsLow) {
  const Json report = examine(doctor({"--json"}, {}, {"prlimit", "--nofile=200:200"}));
  EXPECT_TRUE(failed(report, "limits", "open files", "ulimit -n"));
}

TEST(Doctor, NamesAMissingMpirun) {
  const Json report = examine(doctor({"--json"}, {{"PATH", "/nowhere"}}));
  if (find(report, "all-reduce", "mpi").is_null()) GTEST_SKIP() << "this build has no MPI";
  EXPECT_TRUE(failed(report, "all-reduce", "mpi", "install openmpi-bin"));
}

TEST(Doctor, RefusesAWrongCommandLine) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--nonsense"}, {"--timeout", "-1"}, {"--port", "x"}})
    EXPECT_EQ(doctor(arguments).status, 2) << arguments.front();
  EXPECT_EQ(doctor({}, {{"MASTER_PORT", "seven"}}).status, 2);
}

}  // namespace
}  // namespace lockstep
