// The store, the network and the disk fail.

#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "tests/distributed/fault_support.h"
#include "tests/support/temporary_path.h"

namespace lockstep::fault_test {
namespace {

using testing::TemporaryPath;

/// A store in a process of its own.
class StoreProcess {
 public:
  StoreProcess() : worker_({.scenario = "serve"}), port_(worker_.line("port", Milliseconds(20'000))) {}
  std::map<std::string, std::string> environment() const {
    return {{"LOCKSTEP_STORE_HOSTED", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port_}};
  }
  void kill() {
    worker_.signal(SIGKILL);
    EXPECT_EQ(worker_.status(Milliseconds(5'000)), 128 + SIGKILL);
  }

 private:
  Worker worker_;
  std::string port_;
};

TEST(StoreServer, KilledWhileTheJobTrains) {
  StoreProcess store;
  Job job("slow", 1, "env://", store.environment());
  job.wait_until_ready();
  ASSERT_EQ(job[1].line("phase", Milliseconds(20'000)), "slow");
  Row row("the store's server is killed while the job trains");
  store.kill();
  row.check({&job[0], &job[1], &job[2]}, {.status = 0, .report = false});
}

TEST(StoreServer, KilledThenARank) {
  StoreProcess store;
  Job job("forward", 1, "env://", store.environment());
  job.wait_until_ready();
  ASSERT_EQ(job[1].line("phase", Milliseconds(20'000)), "forward");
  std::this_thread::sleep_for(kSeen);
  Row row("the store's server is killed, then rank 1");
  store.kill();
  job[1].signal(SIGKILL);
  row.check(job.survivors(), {.everywhere = {"rank 1 is gone", "the store does not answer"}});
}

TEST(StoreServer, KilledInTheRendezvous) {
  StoreProcess store;
  Worker first({.rank = 0, .scenario = "train", .environment = store.environment()});
  Worker second({.rank = 1, .scenario = "train", .environment = store.environment()});
  EXPECT_EQ(first.line("starting", Milliseconds(20'000)), "");
  EXPECT_EQ(second.line("starting", Milliseconds(20'000)), "");
  std::this_thread::sleep_for(Milliseconds(300));
  Row row("the store's server is killed in the rendezvous");
  store.kill();
  row.check({&first, &second},
            {.everywhere = {"the other side closed the connection", "holds the store"}, .report = false});
}

TEST(Disk, FullAtACheckpoint) {
  const TemporaryPath folder;
  ASSERT_EQ(mkdir(folder.text().c_str(), 0700), 0);
  if (mount("none", folder.text().c_str(), "tmpfs", 0, "size=8k") != 0)
    GTEST_SKIP() << "a small file system cannot be mounted here";
  {
    const HostedStore store;
    auto environment = store.environment();
    environment["LOCKSTEP_FAULT_DIR"] = folder.text();
    Job job("full_disk", 0, "env://", environment);
    job.wait_until_ready();
    EXPECT_EQ(job[0].line("phase", Milliseconds(20'000)), "full_disk");
    Row row("the disk is full when rank 0 writes a checkpoint");
    row.check({&job[0], &job[1], &job[2]}, {.everywhere = {"No space left on device"}});
  }
  umount(folder.text().c_str());
}

/// Two network namespaces with a cable between them.
class Network {
 public:
  Network() : name_("ls" + std::to_string(getpid() % 10'000)) {
    works_ =
        run("ip netns add " + name_ + "a") && run("ip netns add " + name_ + "b") &&
        run("ip -n " + name_ + "a link add " + name_ + " type veth peer name " + name_ + " netns " + name_ + "b") &&
        run("ip -n " + name_ + "a addr add 10.77.7.1/24 dev " + name_) &&
        run("ip -n " + name_ + "b addr add 10.77.7.2/24 dev " + name_);
    for (const char* side : {"a", "b"})
      works_ = works_ && run("ip -n " + name_ + side + " link set lo up") &&
               run("ip -n " + name_ + side + " link set " + name_ + " up");
  }
  ~Network() {
    run("ip netns del " + name_ + "a");
    run("ip netns del " + name_ + "b");
  }
  bool works() const { return works_; }
  void cut() { EXPECT_TRUE(run("ip -n " + name_ + "b link set " + name_ + " down")); }
  std::vector<std::string> inside(int side) const { return {"ip", "netns", "exec", name_ + (side == 0 ? "a" : "b")}; }

 private:
  static bool run(const std::string& command) { return std::system((command + " 2>/dev/null").c_str()) == 0; }

  std::string name_;
  bool works_ = false;
};

class Link : public ::testing::TestWithParam<bool> {};

INSTANTIATE_TEST_SUITE_P(All, Link, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "DownThenTheRankKilled" : "Down"; });

TEST_P(Link, ForLongerThanTheDeadline) {
  Network network;
  if (!network.works()) GTEST_SKIP() << "network namespaces cannot be made here";
  // Rank 2 is alone on its side; rank 0 holds the store on the other.
  std::vector<std::unique_ptr<Worker>> workers;
  for (int r = 0; r < kWorld; ++r) {
    const int side = r == 2 ? 1 : 0;
    workers.push_back(std::make_unique<Worker>(
        WorkerOptions{.url = "tcp://10.77.7.1:29555",
                      .rank = r,
                      .scenario = "long",
                      .backend = "gloo",
                      .environment = {{"LOCKSTEP_TOKEN", "a secret of this test alone"},
                                      {"LOCKSTEP_INTERFACE", side == 0 ? "10.77.7.1" : "10.77.7.2"}},
                      .wrapper = network.inside(side)}));
  }
  for (const auto& worker : workers)
    ASSERT_EQ(worker->line("ready", Milliseconds(20'000)), std::to_string(kWorld)) << worker->err();
  std::this_thread::sleep_for(kSeen);
  const bool kill_too = GetParam();
  Row row(kill_too ? "the link goes down, then rank 2 behind it is killed (a half-open connection)"
                   : "the link to rank 2 is down for longer than the deadline: ranks 0 and 1");
  network.cut();
  if (kill_too) workers[2]->signal(SIGKILL);
  row.happens_now();  // a busy machine takes its time to start what cuts the link
  Row other_side("the link to rank 2 is down for longer than the deadline: rank 2");
  row.check({workers[0].get(), workers[1].get()}, {.everywhere = {"rank 2"}});
  if (!kill_too) other_side.check({workers[2].get()}, {.everywhere = {"the store does not answer"}, .report = false});
}

}  // namespace
}  // namespace lockstep::fault_test
