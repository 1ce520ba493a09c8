// Names that nobody resolves: whatever looks one up gives up at the deadline.

#include <dlfcn.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "lockstep/distributed/rendezvous/rendezvous.h"
#include "lockstep/distributed/store/socket.h"
#include "tests/support/free_port.h"
#include "tests/support/tensor_testing.h"

namespace {
constexpr std::string_view kSlowHost = "slow.invalid";
constexpr std::chrono::milliseconds kSlow{2'000};
std::atomic<int> lookups = 0;  // of names that are not literal addresses
}  // namespace

/// Takes the C library's place in this program: a name server that does not answer.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* hints, addrinfo** found) {
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  if (!hints || (hints->ai_flags & AI_NUMERICHOST) == 0) ++lookups;
  if (!host || host != kSlowHost) return next(host, service, hints, found);
  std::this_thread::sleep_for(kSlow);
  return EAI_AGAIN;
}

namespace lockstep::distributed {
namespace {

using testing::error_of;

void expect_given_up(const char* what, const std::function<void()>& look_up) {
  const auto start = std::chrono::steady_clock::now();
  const std::string error = error_of(look_up);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kSlow / 2) << what;
  EXPECT_NE(error.find("the name 'slow.invalid' was not resolved within the deadline"), std::string::npos)
      << what << ": " << error;
}

TEST(NameLookup, OfTheRendezvousEndsAtTheDeadline) {
  const std::string port = std::to_string(testing::free_port());
  const auto meet = [&](int rank, const char* local_world_size) {
    const Environment environment{{"RANK", std::to_string(rank)},
                                  {"WORLD_SIZE", "2"},
                                  {"LOCAL_RANK", "0"},
                                  {"LOCAL_WORLD_SIZE", local_world_size},
                                  {"MASTER_ADDR", std::string(kSlowHost)},
                                  {"MASTER_PORT", port}};
    const std::string url = *local_world_size ? "env://" : fmt::format("tcp://{}:{}", kSlowHost, port);
    rendezvous({.url = url, .token = "secret", .timeout = Milliseconds(100)}, environment);
  };
  for (const int rank : {0, 1}) {
    expect_given_up("one of two machines", [&] { meet(rank, "1"); });
    expect_given_up("it is not known how many machines", [&] { meet(rank, ""); });
  }
}

TEST(NameLookup, OfAnAddressEndsAtTheDeadline) {
  const std::string host(kSlowHost);
  const auto soon = [] { return deadline_in(Milliseconds(50)); };
  expect_given_up("a server", [&] {
    TCPStoreServer({.bind_address = host, .token = "secret", .lookup_timeout = Milliseconds(50)});
  });
  expect_given_up("a server without a token",
                  [&] { TCPStoreServer({.bind_address = host, .lookup_timeout = Milliseconds(50)}); });
  expect_given_up("where to listen", [&] { listen_address(host, soon()); });
  expect_given_up("the way there", [&] { local_address_towards(host, 1, soon()); });
  expect_given_up("all addresses", [&] { addresses_of(host, soon()); });
}

TEST(NameLookup, IsNoneOfALiteralAddress) {
  lookups = 0;
  const FileDescriptor listener = listen_on("127.0.0.1", 0);
  rendezvous({.url = fmt::format("tcp://127.0.0.1:{}?rank=0&world_size=1", testing::free_port()), .token = "secret"},
             {});
  EXPECT_EQ(lookups, 0);
}

}  // namespace
}  // namespace lockstep::distributed
