#include "lockstep/distributed/rendezvous/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>
#include <vector>

#include "lockstep/distributed/store/file_store.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/wire.h"
#include "tests/support/free_port.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::distributed {
namespace {

using testing::error_of;
using testing::free_port;
using testing::TemporaryPath;

Environment two_ranks(int rank, int port) {
  return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"},          {"LOCAL_RANK", std::to_string(rank)},
          {"LOCAL_WORLD_SIZE", "2"},      {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}};
}

struct BadCase {
  const char* name;
  const char* url;
  Environment environment;
  const char* expected;
};

class RendezvousErrors : public ::testing::TestWithParam<BadCase> {};

const Environment kComplete = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};

Environment without(const char* name) {
  Environment result = kComplete;
  result.erase(name);
  return result;
}

Environment with(const char* name, const char* value, const char* other = "RANK", const char* others = "0") {
  Environment result = kComplete;
  result[other] = others;
  result[name] = value;
  return result;
}

INSTANTIATE_TEST_SUITE_P(
    All, RendezvousErrors,
    ::testing::Values(
        BadCase{"NoRank", "env://", without("RANK"), "rank is not known: set the environment variable RANK"},
        BadCase{"NoWorldSize", "env://", without("WORLD_SIZE"), "set the environment variable WORLD_SIZE"},
        BadCase{"NoMasterAddr", "env://", without("MASTER_ADDR"), "environment variable MASTER_ADDR is missing"},
        BadCase{"NoMasterPort", "env://", without("MASTER_PORT"), "environment variable MASTER_PORT is missing"},
        BadCase{"RankIsText", "env://", with("RANK", "first"), "RANK is 'first'; expected a whole number from 0 to"},
        BadCase{"RankTooLarge", "env://", with("RANK", "2"),
                "RANK is '2', and WORLD_SIZE is '2'; expected 0 to 1, another one for each process"},
        BadCase{"NegativeRank", "env://", with("RANK", "-1"), "RANK is '-1'; expected a whole number from 0 to"},
        BadCase{"EmptyWorld", "env://", with("WORLD_SIZE", "0"), "WORLD_SIZE is '0'; expected a whole number from 1"},
        BadCase{"WorldIsText", "env://", with("WORLD_SIZE", "2 "), "WORLD_SIZE is '2 '; expected a whole number"},
        BadCase{"HugeWorld", "env://", with("WORLD_SIZE", "2000000000"),
                "WORLD_SIZE is '2000000000'; expected a whole number from 1 to 65536"},
        BadCase{"WorldBeyondNumbers", "env://", with("WORLD_SIZE", "99999999999"), "WORLD_SIZE is '99999999999'; "},
        BadCase{"LocalRankIsText", "env://", with("LOCAL_RANK", "x"), "LOCAL_RANK is 'x'; expected a whole number"},
        BadCase{"LocalRankTooLarge", "env://", with("LOCAL_RANK", "5", "LOCAL_WORLD_SIZE", "2"),
                "LOCAL_RANK is '5', and LOCAL_WORLD_SIZE is '2'; expected 0 to 1"},
        BadCase{"LocalRankBeyondTheJob",
                "env://",
                {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "9"}},
                "LOCAL_RANK is '9', and WORLD_SIZE is '3'; expected 0 to 2"},
        BadCase{"NobodyHere", "env://", with("LOCAL_WORLD_SIZE", "0"), "LOCAL_WORLD_SIZE is '0'; expected a whole"},
        BadCase{"MoreHereThanInAll", "env://", with("LOCAL_WORLD_SIZE", "3"),
                "LOCAL_WORLD_SIZE is '3', and WORLD_SIZE is '2'; expected 1 to 2"},
        BadCase{"AddressIsUrl", "env://", with("MASTER_ADDR", "http://127.0.0.1"), "a host's name or address alone"},
        BadCase{"AddressWithPort", "env://", with("MASTER_ADDR", "127.0.0.1:1"), "a host's name or address alone"},
        BadCase{"PortIsText", "env://", with("MASTER_PORT", "abc"), "MASTER_PORT is 'abc'; expected a whole number"},
        BadCase{"PortOfKubernetes", "env://", with("MASTER_PORT", "tcp://10.0.0.7:80"), "a service is called"},
        BadCase{"PortTooLarge", "env://", with("MASTER_PORT", "70000"), "MASTER_PORT is '70000'; expected a whole"},
        BadCase{"PortInUrlTooLarge", "tcp://127.0.0.1:70000", kComplete, "70000"},
        BadCase{"PortZero", "env://", with("MASTER_PORT", "0"), "port 0 means any free port"},
        BadCase{"NoUrl", "somewhere", kComplete, "is no URL; expected env://, tcp://HOST:PORT or file:///PATH"},
        BadCase{"OtherScheme", "http://x", kComplete, "the scheme 'http'; expected env, tcp or file"},
        BadCase{"TcpNoPort", "tcp://localhost", kComplete, "names no host and port"},
        BadCase{"TcpBadPort", "tcp://localhost:many", kComplete, "the port in 'tcp://localhost:many' is 'many'"},
        BadCase{"TcpNoRank", "tcp://127.0.0.1:1", {}, "or add ?rank=N to 'tcp://127.0.0.1:1'"},
        BadCase{"UnknownKey", "tcp://127.0.0.1:1?size=2", kComplete, "'size=2' in 'tcp://127.0.0.1:1?size=2'"},
        BadCase{"RelativeFile", "file://relative", kComplete, "names no absolute path"},
        BadCase{"NoSuchFolder", "file:///nonexistent/folder/store", kComplete, "No such file"},
        BadCase{"PlaceInEnv", "env://here", kComplete, "env:// takes it from MASTER_ADDR"},
        BadCase{"RankBeyondOpenMpis",
                "env://",
                {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
                "OMPI_COMM_WORLD_RANK is '1', and OMPI_COMM_WORLD_SIZE is '1'; expected 0 to 0"},
        BadCase{"PmixWithoutSize", "env://", {{"PMIX_RANK", "1"}}, "PMIx tells rank 1 but not the size"},
        BadCase{"AddressWithoutToken", "tcp://0.0.0.0:0?rank=0&world_size=1", {}, "needs a token"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(RendezvousErrors, NameWhatIsWrong) {
  const std::string error =
      error_of([&] { rendezvous({.url = GetParam().url, .timeout = Milliseconds(300)}, GetParam().environment); });
  EXPECT_NE(error.find(GetParam().expected), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

/// Runs both ranks of a job, which must find each other's words in the store.
void expect_meeting(const std::function<RendezvousOptions(int)>& options,
                    const std::function<Environment(int)>& environment) {
  Rendezvous places[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank)
    threads.emplace_back([&, rank] {
      Rendezvous place = rendezvous(options(rank), environment(rank));
      place.store->set("from" + std::to_string(place.rank), "hello");
      EXPECT_EQ(place.store->get("from" + std::to_string(1 - place.rank)), "hello");
      places[rank] = std::move(place);
    });
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(places[rank].rank, rank);
    EXPECT_EQ(places[rank].world_size, 2);
  }
}

constexpr Milliseconds kTimeout{20'000};

TEST(Rendezvous, ByEnvironment) {
  const int port = free_port();
  expect_meeting([](int) { return RendezvousOptions{.timeout = kTimeout}; }, [&](int r) { return two_ranks(r, port); });
}

TEST(Rendezvous, ByTcpUrl) {
  const std::string url = "tcp://127.0.0.1:" + std::to_string(free_port());
  expect_meeting(
      [&](int r) {
        return RendezvousOptions{.url = url + "?rank=" + std::to_string(r) + "&world_size=2", .timeout = kTimeout};
      },
      [](int) { return Environment(); });
}

TEST(Rendezvous, ByTcpUrlWithRanksFromTheEnvironmentAndTokenFromOptions) {
  const std::string url = "tcp://localhost:" + std::to_string(free_port());
  expect_meeting([&](int) { return RendezvousOptions{.url = url, .token = "secret", .timeout = kTimeout}; },
                 // A launcher's own store, which is elsewhere, must not keep rank 0 from holding this one.
                 [&](int r) {
                   Environment environment = two_ranks(r, 1);
                   environment["LOCKSTEP_STORE_HOSTED"] = "1";
                   return environment;
                 });
}

TEST(Rendezvous, ByFile) {
  const TemporaryPath path;
  expect_meeting(
      [&](int r) {
        return RendezvousOptions{.url = "file://" + path.text(), .rank = r, .world_size = 2, .timeout = kTimeout};
      },
      [](int) { return Environment(); });
  EXPECT_FALSE(std::filesystem::exists(path.text())) << "the last rank deletes the file";
}

TEST(Rendezvous, RanksWithOtherNumbersOfProcessesAreTold) {
  const TemporaryPath path;
  const auto options = [&](int rank, int world_size) {
    return RendezvousOptions{
        .url = "file://" + path.text(), .rank = rank, .world_size = world_size, .timeout = kTimeout};
  };
  const Rendezvous first = rendezvous(options(0, 2), {});
  const std::string error = error_of([&] { rendezvous(options(1, 3), {}); });
  EXPECT_NE(error.find("the number of processes is 2 (rank 0), and rank 1 was told 3"), std::string::npos) << error;
}

TEST(Rendezvous, AFileThatAKilledJobLeftBeginsAnew) {
  const TemporaryPath path;
  const auto options = [&](int r) {
    return RendezvousOptions{.url = "file://" + path.text(), .rank = r, .world_size = 2, .timeout = kTimeout};
  };
  for (const int ranks : {1, 2}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (int r = 0; r < ranks; ++r) {
        static std::vector<Rendezvous> kept;  // never closed, as by a signal
        kept.push_back(rendezvous(options(r), {}));
        kept.back().store->set("stale", "1");
      }
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    ASSERT_TRUE(std::filesystem::exists(path.text()));
    {
      const Rendezvous first = rendezvous(options(0), {});
      EXPECT_FALSE(first.store->check({"stale"}));
      first.store->set("key", "1");
      // This process lives, so its file stays what it is.
      const Rendezvous second = rendezvous(options(1), {});
      EXPECT_TRUE(second.store->check({"key"}));
    }
    EXPECT_FALSE(std::filesystem::exists(path.text()));
  }
}

// Who was refused owns nothing, and so does not keep the file from beginning anew.
TEST(Rendezvous, ARefusedProcessLeavesAFileWithItsOwners) {
  const TemporaryPath path;
  const auto owned_by = [](const char* name, std::vector<std::string> gone) {
    return FileStoreOwner{.name = name, .is_gone = [gone = std::move(gone)](const std::string& owner) {
                            return std::ranges::find(gone, owner) != gone.end();
                          }};
  };
  const auto open = [&](const FileStoreOwner& owner) {
    return std::make_unique<FileStore>(path.text(), 2, kTimeout, owner);
  };
  const auto a = open(owned_by("a", {})), b = open(owned_by("b", {}));
  a->set("stale", "1");
  EXPECT_THROW(open(owned_by("c", {"a"})), StoreError);
  EXPECT_THROW(open(owned_by("d", {"a", "c"})), StoreError);
  const auto e = open(owned_by("e", {"a", "b", "c", "d"}));
  EXPECT_FALSE(e->check({"stale"}));
}

TEST(Rendezvous, ARestartedGroupFindsACleanFile) {
  const TemporaryPath path;
  const auto start = [&](const char* restarts) {
    return rendezvous({.url = "file://" + path.text(), .rank = 0, .world_size = 2, .timeout = kTimeout},
                      {{"LOCKSTEP_RESTART_COUNT", restarts}});
  };
  const Rendezvous first = start("0");
  first.store->set("key", "1");
  const Rendezvous second = start("1");
  EXPECT_FALSE(second.store->check({"key"}));
  std::filesystem::remove(path.text() + ".restart-1");
}

TEST(Rendezvous, TheLauncherHoldsTheStore) {
  const std::string token = make_token();
  TCPStoreServer server({.token = token});
  expect_meeting([](int) { return RendezvousOptions{.timeout = kTimeout}; },
                 [&](int r) {
                   Environment environment = two_ranks(r, server.port());
                   environment["LOCKSTEP_STORE_HOSTED"] = "1";
                   environment["LOCKSTEP_TOKEN"] = token;
                   return environment;
                 });
}

TEST(Rendezvous, WrongTokenIsRefusedWithinTheDeadline) {
  TCPStoreServer server({.token = make_token()});
  Environment environment = two_ranks(1, server.port());
  environment["LOCKSTEP_STORE_HOSTED"] = "1";
  environment["LOCKSTEP_TOKEN"] = "guess";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_NE(error_of([&] { rendezvous({.timeout = kTimeout}, environment); }).find("wrong token"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kTimeout);
}

TEST(Rendezvous, PortInUse) {
  TCPStoreServer server;
  const std::string error = error_of([&] { rendezvous({.timeout = kTimeout}, two_ranks(0, server.port())); });
  EXPECT_NE(error.find("127.0.0.1:" + std::to_string(server.port()) + ": the port is in use"), std::string::npos)
      << error;
}

TEST(Rendezvous, UnderTorchrunOnSeveralNodesTheNextPortIsOurs) {
  const FileDescriptor agent = listen_on("127.0.0.1", 0);
  const int port = bound_port(agent.get());
  expect_meeting([](int) { return RendezvousOptions{.timeout = kTimeout}; },
                 [&](int r) {
                   Environment environment = two_ranks(r, port);
                   environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
                   environment["LOCAL_RANK"] = "0";
                   environment["LOCAL_WORLD_SIZE"] = "1";
                   return environment;
                 });
}

TEST(Rendezvous, UnderTorchrunItsPortIsLeftToIt) {
  const FileDescriptor agent = listen_on("127.0.0.1", 0);  // torchrun's own store
  const int port = bound_port(agent.get());
  expect_meeting([](int) { return RendezvousOptions{.timeout = kTimeout}; },
                 [&](int r) {
                   Environment environment = two_ranks(r, port);
                   environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
                   environment["MASTER_ADDR"] = "a-name-that-does-not-resolve.invalid";  // one machine: not asked
                   return environment;
                 });
}

TEST(Rendezvous, OpenMpiNeedsNoFlags) {
  const std::string job = "job-" + make_token();
  expect_meeting([](int) { return RendezvousOptions{.timeout = kTimeout}; },
                 [&](int r) {
                   return Environment{{"OMPI_COMM_WORLD_RANK", std::to_string(r)},
                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(r)},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                                      {"PMIX_NAMESPACE", job}};
                 });
}

TEST(ListenAddress, IsTheOneThatOthersUseIfThisMachineHasIt) {
  EXPECT_EQ(listen_address("127.0.0.1", deadline_in(Milliseconds(60'000))), "127.0.0.1");
  EXPECT_EQ(listen_address("localhost", deadline_in(Milliseconds(60'000))), "localhost");
  EXPECT_EQ(listen_address("192.0.2.1", deadline_in(Milliseconds(60'000))), "0.0.0.0");  // kept for documents: nobody's
  EXPECT_NE(error_of([] {
              listen_address("no-such-host.invalid", deadline_in(Milliseconds(60'000)));
            }).find("cannot resolve"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::distributed
