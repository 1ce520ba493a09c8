#include "lockstep/distributed/store/tcp_store.h"

#include <dlfcn.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "lockstep/distributed/store/file_store.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store_server.h"
#include "lockstep/distributed/store/wire.h"
#include "tests/support/refused_threads.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

constexpr const char* kSlowHost = "slow.invalid";

/// Takes the C library's place in this program: a name server that does not answer.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (!host || std::string_view(host) != kSlowHost) return next(host, service, hints, found);
  std::this_thread::sleep_for(std::chrono::milliseconds(2'000));
  return EAI_AGAIN;
}

namespace lockstep::distributed {
namespace {

using std::chrono::steady_clock;
using testing::error_of;
using testing::TemporaryPath;

Deadline soon() {
  return steady_clock::now() + Milliseconds(10'000);
}

TCPStoreOptions client_of(const TCPStoreServer& server, std::string token = "secret") {
  return {.port = server.port(), .token = std::move(token), .timeout = Milliseconds(10'000)};
}

bool closed_by_server(int fd) {
  char byte;
  try {
    for (;;) recv_all(fd, &byte, 1, soon());
  } catch (const StoreError&) {
    return true;
  } catch (const TimeoutError&) {
    return false;
  }
}

/// A client that has proved the token and can now send what it likes.
FileDescriptor admitted_socket(const TCPStoreServer& server) {
  FileDescriptor fd = connect_to("127.0.0.1", server.port(), soon());
  std::string greeting(wire::kHello.size() + wire::kNonceBytes, '\0');
  recv_all(fd.get(), greeting.data(), greeting.size(), soon());
  const std::string nonce(wire::kNonceBytes, 'n');
  const std::string answer = nonce + wire::proof("secret", "client", greeting.substr(wire::kHello.size()), nonce);
  send_all(fd.get(), answer.data(), answer.size(), soon());
  std::string verdict(1 + wire::kProofBytes, '\0');
  recv_all(fd.get(), verdict.data(), verdict.size(), soon());
  EXPECT_EQ(verdict[0], wire::kAdmitted);
  return fd;
}

class TCPStoreTest : public ::testing::Test {
 protected:
  TCPStoreServer server_{TCPStoreServerOptions{.token = "secret", .handshake_timeout = Milliseconds(200)}};
};

TEST_F(TCPStoreTest, AnyFreePortOnLoopback) {
  EXPECT_GT(server_.port(), 0);
  EXPECT_EQ(server_.bind_address(), "127.0.0.1");
}

TEST_F(TCPStoreTest, AClientThatClaimsTooMuchIsDropped) {
  const FileDescriptor fd = admitted_socket(server_);
  std::string length(8, '\0');
  length[7] = 0x10;  // 2^60, little endian
  ::testing::internal::CaptureStderr();
  send_all(fd.get(), length.data(), length.size(), soon());
  EXPECT_TRUE(closed_by_server(fd.get()));
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("claims a message of 1152921504606846976 bytes"), std::string::npos) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  TCPStore store(client_of(server_));
  store.set("still", "works");
  EXPECT_EQ(store.get("still"), "works");
}

TEST_F(TCPStoreTest, MalformedRequestsAreDropped) {
  TCPStore store(client_of(server_));
  std::vector<std::string> bad = {
      wire::Writer().byte(200).message(),                                            // unknown request
      wire::Writer().byte(static_cast<std::uint8_t>(wire::Request::set)).message(),  // no fields
      wire::Writer().byte(static_cast<std::uint8_t>(wire::Request::erase)).integer(~0ull).message(),
      wire::Writer().byte(static_cast<std::uint8_t>(wire::Request::check)).integer(1ull << 40).message(),
      std::string(8, '\0'),  // an empty message
  };
  for (const std::string& message : bad) {
    const FileDescriptor fd = admitted_socket(server_);
    send_all(fd.get(), message.data(), message.size(), soon());
    EXPECT_TRUE(closed_by_server(fd.get()));
  }
  store.set("still", "works");
  EXPECT_EQ(store.get("still"), "works");
}

TEST_F(TCPStoreTest, WrongTokenIsRefusedAtOnce) {
  const auto start = steady_clock::now();
  EXPECT_NE(error_of([&] { TCPStore store(client_of(server_, "guess")); }).find("wrong token"), std::string::npos);
  EXPECT_NE(error_of([&] { TCPStore store(client_of(server_, "")); }).find("LOCKSTEP_TOKEN"), std::string::npos);
  EXPECT_LT(steady_clock::now() - start, Milliseconds(5'000));
}

TEST_F(TCPStoreTest, AClientThatProvesNothingIsDropped) {
  const FileDescriptor fd = connect_to("127.0.0.1", server_.port(), soon());
  EXPECT_TRUE(closed_by_server(fd.get()));
}

TEST_F(TCPStoreTest, GarbageInsteadOfAProofIsDropped) {
  const FileDescriptor fd = connect_to("127.0.0.1", server_.port(), soon());
  const std::string garbage = "GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: something-long-enough/1.0\r\n\r\n";
  send_all(fd.get(), garbage.data(), garbage.size(), soon());
  EXPECT_TRUE(closed_by_server(fd.get()));
}

TEST_F(TCPStoreTest, AServerOfAnotherKindIsRecognised) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::thread impostor([&] {
    FileDescriptor fd;
    while (!(fd = FileDescriptor(accept(listener.get(), nullptr, nullptr)))) std::this_thread::yield();
    const std::string greeting(100, 'x');
    send_all(fd.get(), greeting.data(), greeting.size(), soon());
    char byte;
    EXPECT_THROW(recv_all(fd.get(), &byte, 1, soon()), StoreError);
  });
  const TCPStoreOptions options{.port = bound_port(listener.get()), .timeout = Milliseconds(10'000)};
  EXPECT_NE(error_of([&] { TCPStore store(options); }).find("another program"), std::string::npos);
  impostor.join();
}

// Such as one that is stopped in between.
TEST_F(TCPStoreTest, AServerThatSaysNoMoreIsNamed) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  FileDescriptor fd;
  std::thread impostor([&] {
    while (!(fd = FileDescriptor(accept(listener.get(), nullptr, nullptr)))) std::this_thread::yield();
    const std::string greeting = std::string(wire::kHello) + std::string(wire::kNonceBytes, 'n');
    send_all(fd.get(), greeting.data(), greeting.size(), soon());
  });
  const TCPStoreOptions options{.port = bound_port(listener.get()), .timeout = Milliseconds(300)};
  const std::string error = error_of([&] { TCPStore store(options); });
  impostor.join();
  EXPECT_NE(error.find(fmt::format("[TCPStore 127.0.0.1:{}] did not answer to the token within 300 ms; is the process",
                                   options.port)),
            std::string::npos)
      << error;
}

// Such as a proxy whose store does not run, though the deadline comes before the end of the last connection.
TEST_F(TCPStoreTest, AServerThatClosesConnectionsIsNamed) {
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  std::atomic<bool> ended = false;
  std::thread impostor([&] {
    int taken = 0;
    for (FileDescriptor kept; !ended; std::this_thread::yield())
      if (FileDescriptor fd(accept(listener.get(), nullptr, nullptr)); fd && ++taken > 1) kept = std::move(fd);
  });
  const TCPStoreOptions options{.port = bound_port(listener.get()), .timeout = Milliseconds(500)};
  const std::string error = error_of([&] { TCPStore store(options); });
  ended = true;
  impostor.join();
  EXPECT_NE(error.find("closes them before it says anything; is another program"), std::string::npos) << error;
}

TEST_F(TCPStoreTest, TheLimitOnOpenFilesIsNamed) {
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{0, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const std::string error = error_of([] { listen_on("127.0.0.1", 0); });
  ::setrlimit(RLIMIT_NOFILE, &old);
  EXPECT_NE(error.find("Too many open files; raise the limit on open files (ulimit -n)"), std::string::npos) << error;
}

TEST_F(TCPStoreTest, PortInUseNamesHostPortAndRemedy) {
  const std::string error = error_of([&] { TCPStoreServer second({.port = server_.port(), .token = "secret"}); });
  EXPECT_NE(error.find("127.0.0.1:" + std::to_string(server_.port())), std::string::npos) << error;
  EXPECT_NE(error.find("in use; choose another"), std::string::npos) << error;
}

TEST_F(TCPStoreTest, OtherAddressesNeedAToken) {
  const std::string error = error_of([] { TCPStoreServer open({.bind_address = "0.0.0.0"}); });
  EXPECT_NE(error.find("LOCKSTEP_TOKEN"), std::string::npos) << error;
  for (const char* weak : {"", "x", "                    ", "fifteen letters "}) {
    EXPECT_NE(error_of([&] {
                TCPStoreServer open({.bind_address = "0.0.0.0", .token = weak});
              }).find("listening on 0.0.0.0 needs a token"),
              std::string::npos)
        << weak;
    // Kept for documents: nobody's. The token is looked at before anybody is waited for.
    EXPECT_NE(error_of([&] {
                TCPStore store({.host = "192.0.2.1", .port = 1, .token = weak, .timeout = Milliseconds(300)});
              }).find("connecting to 192.0.2.1 needs a token"),
              std::string::npos)
        << weak;
  }
  TCPStoreServer open({.bind_address = "0.0.0.0", .token = "sixteen_letters_"});
}

TEST_F(TCPStoreTest, NobodyListens) {
  std::uint16_t port = 0;
  { port = bound_port(listen_on("127.0.0.1", 0).get()); }
  const auto start = steady_clock::now();
  const std::string error = error_of([&] { TCPStore store({.port = port, .timeout = Milliseconds(300)}); });
  EXPECT_NE(error.find("127.0.0.1:" + std::to_string(port)), std::string::npos) << error;
  EXPECT_LT(steady_clock::now() - start, Milliseconds(2'000));
}

TEST_F(TCPStoreTest, WaitsForAServerThatComesLater) {
  std::uint16_t port = 0;
  { port = bound_port(listen_on("127.0.0.1", 0).get()); }
  std::unique_ptr<TCPStoreServer> server;
  std::thread later([&] {
    std::this_thread::sleep_for(Milliseconds(100));
    server = std::make_unique<TCPStoreServer>(TCPStoreServerOptions{.port = port});
  });
  TCPStore store({.port = port, .timeout = Milliseconds(20'000)});
  later.join();
  store.set("a", "1");
  EXPECT_EQ(store.get("a"), "1");
}

TEST_F(TCPStoreTest, ServerShutdownEndsABlockedGet) {
  auto server = std::make_unique<TCPStoreServer>(TCPStoreServerOptions{.token = "secret"});
  TCPStore store(client_of(*server));
  std::thread stopper([&] {
    std::this_thread::sleep_for(Milliseconds(100));
    server.reset();
  });
  const auto start = steady_clock::now();
  EXPECT_THROW(store.get("never", Milliseconds(60'000)), StoreError);
  EXPECT_LT(steady_clock::now() - start, Milliseconds(10'000));
  stopper.join();
}

TEST_F(TCPStoreTest, ConnectionsAreBounded) {
  TCPStoreServer small(TCPStoreServerOptions{.token = "secret", .max_connections = 1});
  TCPStore first(client_of(small));
  EXPECT_NE(error_of([&] { TCPStore second(client_of(small)); }).find("no room"), std::string::npos);
  first.set("a", "1");
  EXPECT_EQ(first.get("a"), "1");
}

TEST_F(TCPStoreTest, MemoryIsBounded) {
  TCPStoreServer small(TCPStoreServerOptions{.token = "secret", .max_bytes = 1000});
  TCPStore store(client_of(small));
  store.set("a", std::string(900, 'x'));
  EXPECT_NE(error_of([&] { store.set("b", std::string(200, 'x')); }).find("is full"), std::string::npos);
  EXPECT_EQ(store.num_keys(), 1);
}

TEST_F(TCPStoreTest, IdleWhenTheLastClientHasLeft) {
  auto store = std::make_unique<TCPStore>(client_of(server_));
  store->set("a", "1");  // so that the server has counted it in
  EXPECT_FALSE(server_.wait_until_idle(Milliseconds(20)));
  store.reset();
  EXPECT_TRUE(server_.wait_until_idle(Milliseconds(10'000)));
}

TEST_F(TCPStoreTest, ManyClientsAtOnce) {
  constexpr int kClients = 16;
  std::vector<std::thread> threads;
  for (int i = 0; i < kClients; ++i)
    threads.emplace_back([this, i] {
      TCPStore store(client_of(server_));
      store.set("from" + std::to_string(i), std::to_string(i));
      for (int j = 0; j < kClients; ++j) EXPECT_EQ(store.get("from" + std::to_string(j)), std::to_string(j));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Connect, ANameThatIsNotResolvedEndsAtTheDeadline) {
  const auto start = steady_clock::now();
  const std::string error = error_of([] { connect_to(kSlowHost, 1, deadline_in(Milliseconds(50))); });
  EXPECT_LT(steady_clock::now() - start, Milliseconds(1'000));
  EXPECT_NE(error.find("the name 'slow.invalid' was not resolved within the deadline"), std::string::npos) << error;
}

TEST(TCPStoreServer, AThreadThatCannotBeStartedIsNamed) {
  const lockstep::testing::RefusedThreads none;
  const std::string error = error_of([] { const TCPStoreServer server; });
  EXPECT_NE(error.find("cannot start a thread for a TCPStore's server"), std::string::npos) << error;
}

TEST(Token, IsLongAndFresh) {
  EXPECT_EQ(make_token().size(), 64u);
  EXPECT_NE(make_token(), make_token());
}

TEST(FileStore, TheLastWorkerDeletesTheFile) {
  const TemporaryPath path;
  {
    FileStore a(path.text(), 2);
    { FileStore b(path.text(), 2); }
    EXPECT_TRUE(std::filesystem::exists(path.text()));
  }
  EXPECT_FALSE(std::filesystem::exists(path.text()));
}

TEST(FileStore, AFileLeftOverIsRefused) {
  const TemporaryPath path;
  FileStore a(path.text(), 1);
  const std::string error = error_of([&] { FileStore again(path.text(), 1); });
  EXPECT_NE(error.find("left over from an earlier run"), std::string::npos) << error;
}

TEST(FileStore, OtherFilesAreLeftAlone) {
  const TemporaryPath path;
  { std::ofstream(path.text()) << "somebody's precious text, longer than a header"; }
  chmod(path.text().c_str(), 0600);
  EXPECT_NE(error_of([&] { FileStore store(path.text(), 1); }).find("is no store"), std::string::npos);
  EXPECT_GT(std::filesystem::file_size(path.text()), 40u);
  EXPECT_NE(error_of([&] { FileStore store("/nonexistent/folder/file", 1); }).find("No such file"), std::string::npos);
}

TEST(FileStore, AFileOfOthersIsRefused) {
  const TemporaryPath path, link;
  const auto error = [&](const std::string& name) { return error_of([&] { FileStore store(name, 0); }); };
  { const FileStore kept(path.text(), 0); }
  for (const mode_t mode : {0666, 0640, 0602}) {
    ASSERT_EQ(chmod(path.text().c_str(), mode), 0);
    EXPECT_NE(error(path.text()).find("can be read or written by others (mode 6"), std::string::npos) << mode;
  }
  ASSERT_EQ(chmod(path.text().c_str(), 0600), 0);
  { const FileStore again(path.text(), 0); }
  ASSERT_EQ(symlink(path.text().c_str(), link.text().c_str()), 0);
  EXPECT_NE(error(link.text()).find("is a symbolic link"), std::string::npos) << error(link.text());
  if (geteuid() != 0) return;  // only root can give a file away
  ASSERT_EQ(chown(path.text().c_str(), 65'534, 65'534), 0);
  EXPECT_NE(error(path.text()).find("belongs to the user with the number 65534"), std::string::npos);
}

TEST(FileStore, LengthsAreCheckedBeforeMemoryIsTaken) {
  const auto error_with = [](std::string_view text) {
    const TemporaryPath path;
    std::ofstream(path.text()) << text;
    chmod(path.text().c_str(), 0600);
    EXPECT_EQ(truncate(path.text().c_str(), off_t{1} << 42), 0);  // nearly all of it a hole
    return error_of([&] { FileStore store(path.text(), 0); });
  };
  EXPECT_NE(error_with("something else").find("is no store"), std::string::npos);
  EXPECT_NE(error_with("lockstep-file-store-1\n").find("is damaged at offset 22"), std::string::npos);
}

TEST(FileStore, RecordsLongerThanAChunkAreRead) {
  const TemporaryPath path;
  FileStore a(path.text(), 0);
  const std::string large(1 << 20, 'x');
  a.set("first", "1");
  a.set("large", large);
  for (int i = 0; i < 100; ++i) a.set("key " + std::to_string(i), std::string(999, 'y'));
  FileStore b(path.text(), 0);
  EXPECT_EQ(b.get("large"), large);
  EXPECT_EQ(b.get("first"), "1");
  EXPECT_EQ(b.get("key 99").size(), 999u);
}

TEST(FileStore, AHalfWrittenRecordIsCutOff) {
  const TemporaryPath path;
  FileStore a(path.text(), 0);
  a.set("whole", "1");
  {
    std::ofstream(path.text(), std::ios::app | std::ios::binary)
        << std::string("\3\0\0\0\0\0\0\0\5\0\0\0\0\0\0\0ke", 18);
  }
  EXPECT_FALSE(a.check({"key"}));
  a.set("after", "2");
  FileStore b(path.text(), 0);
  EXPECT_EQ(b.get("after", Milliseconds(0)), "2");
  EXPECT_EQ(b.get("whole", Milliseconds(0)), "1");
}

}  // namespace
}  // namespace lockstep::distributed
