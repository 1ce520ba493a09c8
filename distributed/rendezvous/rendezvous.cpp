#include "lockstep/distributed/rendezvous/rendezvous.h"

#include <algorithm>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/failure/process_identity.h"
#include "lockstep/distributed/failure/refusal.h"
#include "lockstep/distributed/rendezvous/meeting_file.h"
#include "lockstep/distributed/rendezvous/url.h"
#include "lockstep/distributed/store/file_store.h"
#include "lockstep/distributed/store/prefix_store.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/wire.h"

namespace lockstep::distributed {
namespace {

constexpr const char* kWildcard = "0.0.0.0";
constexpr const char* kIPv4Loopback = "127.0.0.1";

std::string variable(const Environment& environment, std::string_view name) {
  const auto entry = environment.find(name);
  return entry == environment.end() ? std::string() : entry->second;
}

/// Finds out who this process is: options before URL before environment.
void find_place(Rendezvous& found, const Url& url, const RendezvousOptions& options,
                const LauncherVariables& launcher) {
  const auto choose = [&](const std::optional<int>& option, std::string_view key, const std::optional<int>& variable,
                          std::string_view variable_name) {
    if (option) return *option;
    if (const auto entry = url.query.find(key); entry != url.query.end())
      return number_in_url(entry->second, key, options.url);
    LOCKSTEP_CHECK(launcher.incomplete.empty(), "{}", launcher.incomplete);
    if (launcher.launcher == "PMIx" && key == "world_size" && !variable)
      LOCKSTEP_CHECK(false, "[rendezvous] PMIx tells rank {} but not the size of the job; set WORLD_SIZE and RANK",
                     launcher.rank.value_or(0));
    std::string others;
    if (launcher.rank) others = fmt::format(" (RANK is {})", *launcher.rank);
    if (launcher.world_size) others = fmt::format(" (WORLD_SIZE is {})", *launcher.world_size);
    LOCKSTEP_CHECK(variable,
                   "[rendezvous] {} is not known: set the environment variable {}{} or the option InitOptions::{}, or "
                   "start the program with "
                   "lockstep-run; expected {}{}",
                   key, variable_name,
                   url.scheme == "env" ? std::string() : fmt::format(" or add ?{}=N to '{}'", key, options.url), key,
                   key == "rank" ? "this process's number in the job, from 0" : "the number of the job's processes",
                   others);
    return *variable;
  };
  found.rank = choose(options.rank, "rank", launcher.rank, "RANK");
  found.world_size = choose(options.world_size, "world_size", launcher.world_size, "WORLD_SIZE");
  LOCKSTEP_CHECK(found.world_size >= 1, "[rendezvous] the number of the job's processes is {}; expected at least 1",
                 found.world_size);
  LOCKSTEP_CHECK(found.world_size <= kMostRanks,
                 "[rendezvous] the number of the job's processes is {} (WORLD_SIZE, world_size); expected at most {}",
                 found.world_size, kMostRanks);
  LOCKSTEP_CHECK(found.rank >= 0 && found.rank < found.world_size,
                 "[rendezvous] the rank is {} in a job of {} processes; expected 0 to {}, another one for each process",
                 found.rank, found.world_size, found.world_size - 1);
}

void check_address(const std::string& host) {
  LOCKSTEP_CHECK(host.find("://") == std::string::npos && std::count(host.begin(), host.end(), ':') != 1,
                 "[rendezvous] the environment variable MASTER_ADDR is '{}'; expected a host's name or address alone, "
                 "without a scheme or a port, which MASTER_PORT says",
                 host);
}

bool on_one_machine(const Rendezvous& found, const LauncherVariables& launcher, const std::string& host,
                    Deadline deadline) {
  if (launcher.local_world_size) return *launcher.local_world_size == found.world_size;
  return host.empty() || is_loopback(host, deadline);
}

std::string token_of(const RendezvousOptions& options, const Environment& environment) {
  return options.token ? *options.token : variable(environment, "LOCKSTEP_TOKEN");
}

void find_store_at(Rendezvous& found, const std::string& host, int port, const RendezvousOptions& options,
                   const Environment& environment, Deadline deadline) {
  LOCKSTEP_CHECK(port >= 0 && port <= 65'535, "[rendezvous] port {} is not between 0 and 65535", port);
  const bool hosted = variable(environment, "LOCKSTEP_STORE_HOSTED") == "1";
  LOCKSTEP_CHECK(port != 0 || found.world_size == 1,
                 "[rendezvous] port 0 means any free port, which the other ranks "
                 "cannot know; name one (MASTER_PORT), or let lockstep-run choose it");
  const std::string token = token_of(options, environment);
  // A launcher that holds the store says where; a job that holds its own on one machine needs no name service.
  found.master_addr = found.single_node && !hosted ? loopback_address() : host;
  found.master_port = port;
  if (!hosted && found.rank == 0) {
    const TCPStoreServerOptions server{.bind_address = listen_address(found.master_addr, deadline),
                                       .port = static_cast<std::uint16_t>(port),
                                       .token = token,
                                       .lookup_timeout = time_left(deadline)};
    if (server.bind_address != found.master_addr)
      logging::info("{} is not an address of this machine for others; the store listens on all of them",
                    found.master_addr);
    found.server = std::make_unique<TCPStoreServer>(server);
    found.master_port = found.server->port();
  }
  // Rank 0 reaches its own server wherever it is bound.
  const bool wildcard = found.server && found.server->bind_address() == kWildcard;
  found.store = std::make_shared<TCPStore>(TCPStoreOptions{.host = wildcard ? kIPv4Loopback : found.master_addr,
                                                           .port = static_cast<std::uint16_t>(found.master_port),
                                                           .token = token,
                                                           .timeout = options.timeout,
                                                           .connected_by = deadline});
}

/// See Note [Meeting without an address].
void find_store_by_file(Rendezvous& found, const LauncherVariables& launcher, const RendezvousOptions& options,
                        const Environment& environment) {
  constexpr Milliseconds kTry{1'000};
  constexpr Milliseconds kPause{20};
  const std::string given = token_of(options, environment);
  auto file = std::make_unique<MeetingFile>(launcher.job_name);
  found.master_addr = loopback_address();
  const auto connect = [&](const MeetingPlace& place, Milliseconds timeout) {
    auto store = std::make_shared<TCPStore>(TCPStoreOptions{.host = loopback_address(),
                                                            .port = static_cast<std::uint16_t>(place.port),
                                                            .token = given.empty() ? place.token : given,
                                                            .timeout = timeout});
    store->set_timeout(options.timeout);
    found.store = store;
    found.master_port = place.port;
  };
  if (found.rank == 0) {
    const std::string token = given.empty() ? make_token() : given;
    found.server =
        std::make_unique<TCPStoreServer>(TCPStoreServerOptions{.bind_address = loopback_address(), .token = token});
    const MeetingPlace place{found.server->port(), given.empty() ? token : ""};
    file->write(place);
    found.meeting_file = std::move(file);
    return connect(place, options.timeout);
  }
  const Deadline deadline = deadline_in(options.timeout);
  std::string last = "there is no such file";
  for (;;) {
    if (const auto place = file->read()) {
      try {
        return connect(*place, std::min(kTry, options.timeout));
      } catch (const Error& error) {
        last = error.what();
      }
    }
    if (has_passed(deadline - kPause))
      throw TimeoutError(
          fmt::format("[rendezvous] rank {} has not met rank 0 within {} ms: rank 0 was to say in '{}' "
                      "where its store is ({}); has rank 0 failed, or has it another TMPDIR?",
                      found.rank, options.timeout.count(), file->path(), last));
    std::this_thread::sleep_for(kPause);
  }
}

void find_store_by_environment(Rendezvous& found, const LauncherVariables& launcher, const RendezvousOptions& options,
                               const Environment& environment, Deadline deadline) {
  const bool hosted = variable(environment, "LOCKSTEP_STORE_HOSTED") == "1";
  const bool told = launcher.master_port && !launcher.port_is_launchers;
  if (found.single_node && found.world_size > 1 && !launcher.job_name.empty() && !hosted && !told)
    return find_store_by_file(found, launcher, options, environment);
  std::string host = launcher.master_addr;
  if (host.empty() && launcher.derived_port) host = found.single_node ? loopback_address() : launcher.first_node;
  LOCKSTEP_CHECK(!host.empty(),
                 "[rendezvous] the environment variable MASTER_ADDR is missing: set it to the address of "
                 "rank 0's machine (127.0.0.1 for a job on one machine), or start the program with lockstep-run{}",
                 launcher.launcher == "Open MPI" ? "; mpirun passes variables on with -x NAME" : "");
  const std::string port_text = variable(environment, "MASTER_PORT");
  LOCKSTEP_CHECK(launcher.master_port || port_text.empty(),
                 "[rendezvous] the environment variable MASTER_PORT is '{}'; expected a whole number from 0 to 65535",
                 port_text);
  std::optional<int> port = launcher.master_port;
  if (!port) port = launcher.derived_port;
  LOCKSTEP_CHECK(port,
                 "[rendezvous] the environment variable MASTER_PORT is missing: set it to a free port of {}, the "
                 "same for all ranks, or start the program with lockstep-run",
                 host);
  // See Note [Who holds the store].
  if (launcher.port_is_launchers) ++*port;
  find_store_at(found, host, *port, options, environment, deadline);
}

/// Ranks that were told different numbers of processes would wait for each other, or for nobody.
void check_world_sizes(Rendezvous& found, Deadline deadline) {
  const std::string own = std::to_string(found.world_size);
  const std::string said = fmt::format("{} (rank {})", own, found.rank);
  const std::string first =
      found.store->compare_set("world_size", "", said, std::max(time_left(deadline), Milliseconds(1)));
  if (first.starts_with(own + " ")) return;
  const std::string why = fmt::format(
      "[rendezvous] the number of processes is {}, and rank {} was told {}: give all ranks the same WORLD_SIZE "
      "(world_size in a URL)",
      first, found.rank, own);
  refuse_meeting(*found.store, why);
  found.meeting.reset();
  found.store.reset();
  if (found.server) found.server->wait_until_idle(kLeaveTaking);
  throw Error(why);
}

}  // namespace

Rendezvous rendezvous(const RendezvousOptions& options, const Environment& environment) {
  const Deadline deadline = deadline_in(options.timeout);
  const Url url = parse_url(options.url);
  const LauncherVariables launcher = read_launcher(environment);
  Rendezvous found;
  find_place(found, url, options, launcher);
  if (options.store) {
    found.store = options.store;
    found.master_addr = launcher.master_addr;
    found.single_node = on_one_machine(found, launcher, found.master_addr, deadline);
  } else if (url.scheme == "env") {
    LOCKSTEP_CHECK(url.place.empty(),
                   "[rendezvous] '{}' names a place; env:// takes it from MASTER_ADDR and MASTER_PORT", options.url);
    check_address(launcher.master_addr);
    found.single_node = on_one_machine(found, launcher, launcher.master_addr, deadline);
    find_store_by_environment(found, launcher, options, environment, deadline);
  } else if (url.scheme == "tcp") {
    const auto [host, port] = parse_host_and_port(url.place, options.url);
    Environment here = environment;
    here.erase("LOCKSTEP_STORE_HOSTED");  // the launcher's store is elsewhere
    found.single_node = on_one_machine(found, launcher, host, deadline);
    find_store_at(found, host, port, options, here, deadline);
  } else if (url.scheme == "file") {
    LOCKSTEP_CHECK(url.place.starts_with('/'), "[rendezvous] '{}' names no absolute path; expected file:///PATH",
                   options.url);
    // A restarted group must not find what the one before it left behind.
    const std::string restarts = variable(environment, "LOCKSTEP_RESTART_COUNT");
    const bool first = restarts.empty() || restarts == "0";
    const FileStoreOwner owner{.name = encode(own_identity()), .is_gone = [](const std::string& name) {
                                 return fate_of(decode_identity(name)) == ProcessFate::gone;
                               }};
    found.store = std::make_shared<FileStore>(first ? url.place : url.place + ".restart-" + restarts, found.world_size,
                                              options.timeout, owner);
    found.master_addr = launcher.master_addr;
    found.single_node = on_one_machine(found, launcher, found.master_addr, deadline);
  } else {
    LOCKSTEP_CHECK(false, "[rendezvous] '{}' has the scheme '{}'; expected env, tcp or file", options.url, url.scheme);
  }
  found.local_rank = launcher.local_rank;
  found.local_world_size = launcher.local_world_size;
  if (url.scheme != "file") {
    const std::string restarts = variable(environment, "LOCKSTEP_RESTART_COUNT");
    found.store = std::make_shared<PrefixStore>("group-" + (restarts.empty() ? "0" : restarts), found.store);
    found.store->set_timeout(options.timeout);
  }
  if (found.world_size > 1) {
    found.meeting = std::make_unique<MeetingNumber>(found.store, found.rank);
    found.store = found.meeting->keys();
    check_world_sizes(found, deadline);
  }
  return found;
}

}  // namespace lockstep::distributed
