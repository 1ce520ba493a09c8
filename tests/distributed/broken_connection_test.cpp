// Connections to a store that break, and those that cannot be made.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/distributed/store/retrying_store.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/tcp_store_server.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;

/// Ends what this process has connected to a port, as a firewall's reset does.
int break_connections(std::uint16_t port) {
  int broken = 0;
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || peer.sin_port != htons(port)) continue;
    broken += ::shutdown(fd, SHUT_RDWR) == 0 ? 1 : 0;
  }
  return broken;
}

class BrokenConnection : public ::testing::Test {
 protected:
  std::optional<TCPStoreServer> server_{TCPStoreServerOptions{.token = "secret"}};
  std::uint16_t port_ = server_->port();
  StorePtr store_ =
      std::make_shared<TCPStore>(TCPStoreOptions{.port = port_, .token = "secret", .timeout = Milliseconds(10'000)});
};

TEST_F(BrokenConnection, IsAnErrorOfOneRequest) {
  store_->set("key", "value");
  ASSERT_EQ(break_connections(port_), 1);
  EXPECT_THROW(store_->get("key"), ConnectionError);
  EXPECT_EQ(store_->get("key"), "value");
}

TEST_F(BrokenConnection, IsReplacedWhereRequestsAreMadeAgain) {
  RetryingStore retrying(store_);
  retrying.set("key", "value");
  ASSERT_EQ(break_connections(port_), 1);
  EXPECT_EQ(retrying.get("key"), "value");
  EXPECT_EQ(retrying.compare_set("key", "value", "other"), "other");
}

TEST_F(BrokenConnection, IsTheEndWhereNobodyListensAnyMore) {
  RetryingStore retrying(store_);
  retrying.set("key", "value");
  server_.reset();
  const auto start = std::chrono::steady_clock::now();
  const std::string error = error_of([&] { retrying.get("key"); });
  EXPECT_NE(error.find("nobody listens there any more"), std::string::npos) << error;
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(6));
}

TEST(Loopback, ThatIsDownIsNamedAtOnce) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) ::_exit(99);
    const auto start = std::chrono::steady_clock::now();
    const std::string error = error_of([] { connect_to("127.0.0.1", 9, deadline_in(Milliseconds(20'000))); });
    const bool at_once = std::chrono::steady_clock::now() - start < std::chrono::seconds(5);
    ::_exit(at_once && error.find("ip link set lo up") != std::string::npos ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 99) GTEST_SKIP() << "no network of its own for a process";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace lockstep::distributed
