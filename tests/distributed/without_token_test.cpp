// Jobs without a token: processes of one user meet, and nobody else's. Client and server each look for themselves, so
// each is met here by another that does not look.

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "lockstep/core/posix.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/tcp_store_server.h"
#include "lockstep/distributed/store/wire.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;

Deadline soon() {
  return deadline_in(Milliseconds(10'000));
}

TCPStoreOptions client_of(std::uint16_t port) {
  return {.port = port, .timeout = Milliseconds(10'000)};
}

/// A process of another user, which root alone can start; wait() gives what `body` returned.
class OtherUser {
 public:
  explicit OtherUser(const std::function<int()>& body) : child_(fork()) {
    if (child_ == 0) _exit(setgid(65'534) == 0 && setuid(65'534) == 0 ? body() : 99);
  }
  int wait() {
    int status = 0;
    waitpid(child_, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  }

 private:
  pid_t child_;
};

TEST(WithoutAToken, ProcessesOfOneUserMeet) {
  const TCPStoreServer server;
  TCPStore store(client_of(server.port()));
  store.set("key", "value");
  EXPECT_EQ(store.get("key"), "value");
}

// Whose a connection is stands in a file, for which a client needs one descriptor more than for the connection.
TEST(WithoutAToken, OneThatMayOpenNoMoreFilesSaysSo) {
  const TCPStoreServer server;
  Pipe pipe = make_pipe();
  const pid_t child = fork();
  if (child == 0) {
    const int next = dup(0);
    close(next);
    const auto one_more = static_cast<rlim_t>(next + 1);
    const rlimit limit{one_more, one_more};
    setrlimit(RLIMIT_NOFILE, &limit);
    const std::string error = error_of([&] { TCPStore store(client_of(server.port())); });
    write_all(pipe.write.get(), error.data(), error.size());
    _exit(0);
  }
  pipe.write.reset();
  std::string error(2'000, '\0');
  error.resize(read_all(pipe.read.get(), error.data(), error.size()));
  waitpid(child, nullptr, 0);
  EXPECT_NE(error.find("whose store this is cannot be looked up: Too many open files; raise the limit"),
            std::string::npos)
      << error;
}

TEST(WithoutAToken, AnotherUserIsTurnedAway) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const TCPStoreServer server;
  OtherUser client([&] {
    return error_of([&] { TCPStore store(client_of(server.port())); }).find("belongs to another user") ==
           std::string::npos;
  });
  EXPECT_EQ(client.wait(), 0);
  EXPECT_EQ(server.connections(), 0);
}

TEST(WithoutAToken, TheServerLooksWhoseTheClientIs) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const TCPStoreServer server;
  OtherUser client([&]() -> int {
    const FileDescriptor fd = connect_to("127.0.0.1", server.port(), soon());
    std::string greeting(wire::kHello.size() + wire::kNonceBytes, '\0');
    recv_all(fd.get(), greeting.data(), greeting.size(), soon());
    const std::string nonce(wire::kNonceBytes, 'n');
    const std::string answer = nonce + wire::proof("", "client", greeting.substr(wire::kHello.size()), nonce);
    send_all(fd.get(), answer.data(), answer.size(), soon());
    char verdict = 0;
    recv_all(fd.get(), &verdict, 1, soon());
    return verdict;
  });
  EXPECT_EQ(client.wait(), wire::kOtherUser);
}

TEST(WithoutAToken, TheClientLooksWhoseTheServerIs) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  Pipe port = make_pipe();
  OtherUser server([&]() -> int {
    const FileDescriptor listener = listen_on("127.0.0.1", 0);
    const std::uint16_t number = bound_port(listener.get());
    write_all(port.write.get(), &number, sizeof number);
    FileDescriptor fd;
    while (!fd) fd.reset(accept(listener.get(), nullptr, nullptr));
    const std::string nonce(wire::kNonceBytes, 's'), hello = std::string(wire::kHello) + nonce;
    send_all(fd.get(), hello.data(), hello.size(), soon());
    std::string answer(wire::kNonceBytes + wire::kProofBytes, '\0');
    recv_all(fd.get(), answer.data(), answer.size(), soon());
    const std::string verdict = wire::kAdmitted + wire::proof("", "server", nonce, answer.substr(0, wire::kNonceBytes));
    send_all(fd.get(), verdict.data(), verdict.size(), soon());
    char byte = 0;
    return recv(fd.get(), &byte, 1, MSG_WAITALL) == 0 ? 0 : 1;  // no request came
  });
  std::uint16_t number = 0;
  ASSERT_EQ(read_all(port.read.get(), &number, sizeof number), 2);
  const std::string error = error_of([&] { TCPStore store(client_of(number)); });
  EXPECT_NE(error.find("belongs to another user"), std::string::npos) << error;
  EXPECT_EQ(server.wait(), 0);
}

// In a user namespace the kernel's table shows every user without a number there by one and the same, which is this
// process's own as well if it has none.
TEST(WithoutAToken, NobodyGetsInWhereTheTableCannotTellUsersApart) {
  Pipe said = make_pipe();
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER) != 0) _exit(77);
    const TCPStoreServer server;
    const std::string error = error_of([&] { TCPStore store(client_of(server.port())); });
    write_all(said.write.get(), error.data(), error.size());
    _exit(0);
  }
  said.write.reset();
  std::string error(1000, 0);
  error.resize(static_cast<std::size_t>(read_all(said.read.get(), error.data(), error.size())));
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "no user namespace can be made here";
  EXPECT_NE(error.find("or the system does not say to whom"), std::string::npos) << error;
}

// Whom a closed connection belonged to is not known, and nobody else has tried to get in.
TEST(WithoutAToken, AClientThatHasGoneIsNotTakenForAnotherUser) {
  const TCPStoreServer server;
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 100; ++i) {
    const FileDescriptor fd = connect_to("127.0.0.1", server.port(), soon());
    std::string greeting(wire::kHello.size() + wire::kNonceBytes, '\0');
    recv_all(fd.get(), greeting.data(), greeting.size(), soon());
    const std::string nonce(wire::kNonceBytes, 'n');
    const std::string answer = nonce + wire::proof("", "client", greeting.substr(wire::kHello.size()), nonce);
    send_all(fd.get(), answer.data(), answer.size(), soon());
  }
  TCPStore store(client_of(server.port()));  // by now the server has looked at them all
  store.set("still", "works");
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(log.find("turns away"), std::string::npos) << log;
}

}  // namespace
}  // namespace lockstep::distributed
