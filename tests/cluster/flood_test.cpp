// A job that trains while strangers do to its store's port whatever they can.

#include "tests/cluster/flood.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <thread>

#include "tests/cluster/cluster_support.h"

namespace lockstep {
namespace {

using namespace lockstep::testing;

constexpr int kConnections = 1000;
constexpr int kMostOfThem = kConnections * 9 / 10;
#ifdef __SANITIZE_ADDRESS__
constexpr int kSteps = 40;
#else
constexpr int kSteps = 200;
#endif
constexpr std::chrono::seconds kLimit{150};

/// The first number in a file, once it is there; 0 if it does not come.
int wait_for_number(const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    std::ifstream file(path);
    if (int number = 0; file >> number) return number;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return 0;
}

void wait_for_the_flood(const Flood& flood) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (flood.open() < kMostOfThem && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

int free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  close(fd);
  return ntohs(address.sin_port);
}

class StoreFlood : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (dataset().empty()) GTEST_SKIP() << "neither MNIST nor Fashion-MNIST is here";
  }

  /// Two ranks that start once the file "go" is there; the store's port is in the file "port" before.
  static ProcessResult run(const std::string& holder, const std::string& folder) {
    const Arguments program = training_program(kSteps);
    if (holder == "launcher") {
      const std::string script =
          "if [ $RANK = 0 ]; then echo $MASTER_PORT > $0/port.new; mv $0/port.new $0/port; fi\n" + kWait +
          "exec \"$@\"";
      return run_process(
          Arguments{LOCKSTEP_RUN, "--nproc-per-node", "2", "--", "/bin/sh", "-c", script, folder} + program, kClean,
          kLimit);
    }
    const std::string script =
        "echo $MASTER_PORT > $0/port\n" + kWait + "RANK=1 LOCAL_RANK=1 \"$@\" & RANK=0 LOCAL_RANK=0 \"$@\" && wait $!";
    return run_process(Arguments{"/bin/sh", "-c", script, folder} + program,
                       {{"WORLD_SIZE", "2"},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"MASTER_ADDR", "127.0.0.1"},
                        {"MASTER_PORT", std::to_string(free_port())},
                        {"LOCKSTEP_STORE_HOSTED", ""}},
                       kLimit);
  }

 private:
  inline static const std::string kWait = "until [ -e $0/go ]; do sleep 0.05; done\n";
};

INSTANTIATE_TEST_SUITE_P(HeldBy, StoreFlood, ::testing::Values("launcher", "rank0"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(StoreFlood, AJobMeetsTrainsAndEndsUnharmed) {
  const std::string holder = GetParam();
  TemporaryDirectory calm;
  std::ofstream(calm.file("go")) << "now";
  const ProcessResult undisturbed = run(holder, calm.path());
  ASSERT_EQ(undisturbed.status, 0) << undisturbed.err;
  ASSERT_NE(outcome(undisturbed.out), "") << undisturbed.out;

  TemporaryDirectory rough;
  auto job = std::async(std::launch::async, [&] { return run(holder, rough.path()); });
  const int port = wait_for_number(rough.file("port"));
  ASSERT_GT(port, 0) << job.get().err;
  Flood flood(port, kConnections);
  if (holder == "launcher") wait_for_the_flood(flood);
  std::ofstream(rough.file("go")) << "now";
  wait_for_the_flood(flood);  // rank 0 has to be there to be flooded
  const int open = flood.open();
  const ProcessResult result = job.get();
  const int opened = flood.opened();

  EXPECT_GE(open, kMostOfThem);
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(outcome(result.out), outcome(undisturbed.out)) << result.err;
  EXPECT_GT(opened, kConnections);
  EXPECT_GT(flood.bytes_sent(), 1'000'000);
  // What the store says about it is bounded: ten lines in ten seconds.
  EXPECT_LT(std::count(result.err.begin(), result.err.end(), '\n'), 200) << result.err;
  std::printf("%d connections opened, %lld bytes of garbage\n", opened, static_cast<long long>(flood.bytes_sent()));
}

}  // namespace
}  // namespace lockstep
