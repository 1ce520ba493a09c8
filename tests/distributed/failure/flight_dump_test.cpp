// Dumps of operations, where something else has the name of their file.

#include "lockstep/distributed/failure/flight_dump.h"

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "lockstep/distributed/failure/flight_recorder.h"
#include "tests/support/temporary_path.h"

namespace lockstep::distributed {
namespace {

namespace fs = std::filesystem;

/// Plants something under the name of this process's dump.
using Plant = std::function<void(const std::string& path)>;

const Plant kPlants[] = {[](const std::string& path) { ::mkfifo(path.c_str(), 0600); },
                         [](const std::string& path) {
                           std::ofstream(path + ".victim") << "another's";
                           fs::create_symlink(path + ".victim", path);
                         }};

/// The status of a child that must end soon.
int status_of(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

void expect_no_wait(int signal, const std::function<void(const FlightRecorder& recorder)>& dump) {
  const testing::TempDir folder;
  for (const Plant& plant : kPlants) {
    const int status = status_of([&] {
      ::setenv("LOCKSTEP_DUMP_DIR", folder.path().c_str(), 1);
      std::signal(SIGABRT, SIG_DFL);
      static const FlightRecorder recorder(16, 0, 1);
      FlightDumps::add(recorder);
      plant(fmt::format("{}/rank0.{}.jsonl", folder.path().string(), ::getpid()));
      dump(recorder);
    });
    EXPECT_EQ(signal == 0 ? status : WTERMSIG(status), signal);
  }
  for (const auto& entry : fs::directory_iterator(folder.path())) {
    if (entry.path().extension() != ".victim") continue;
    std::ifstream file(entry.path());
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "another's");
  }
}

TEST(FlightDump, OfARankThatFailsIsWrittenToAFileAlone) {
  expect_no_wait(0, [](const FlightRecorder& recorder) { FlightDumps::write_after_failure(recorder, "test"); });
}

TEST(FlightDump, OfACrashIsWrittenToAFileAlone) {
  expect_no_wait(SIGABRT, [](const FlightRecorder&) { std::abort(); });
}

}  // namespace
}  // namespace lockstep::distributed
