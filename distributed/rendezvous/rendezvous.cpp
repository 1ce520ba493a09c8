#include "distributed/rendezvous/rendezvous.h"

#include <charconv>

#include "core/check.h"
#include "core/log.h"
#include "distributed/store/file_store.h"
#include "distributed/store/prefix_store.h"
#include "distributed/store/socket.h"
#include "distributed/store/tcp_store.h"

namespace lockstep::distributed {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

std::string variable(const Environment& environment, std::string_view name) {
  const auto entry = environment.find(name);
  return entry == environment.end() ? std::string() : entry->second;
}

int parse_number(std::string_view text, std::string_view what, const std::string& url) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  LOCKSTEP_CHECK(error == std::errc() && end == text.data() + text.size() && value >= 0,
                 "[rendezvous] {} in '{}' is '{}'; expected a whole number", what, url, text);
  return value;
}

/// "scheme://place?key=value&...".
struct Url {
  std::string scheme;
  std::string place;
  std::map<std::string, std::string, std::less<>> query;
};

Url parse_url(const std::string& text) {
  const std::size_t colon = text.find("://");
  LOCKSTEP_CHECK(colon != std::string::npos,
                 "[rendezvous] '{}' is no URL; expected env://, tcp://HOST:PORT or "
                 "file:///PATH",
                 text);
  Url url;
  url.scheme = text.substr(0, colon);
  const std::size_t question = text.find('?', colon);
  url.place = text.substr(colon + 3, question == std::string::npos ? question : question - colon - 3);
  std::string_view rest =
      question == std::string::npos ? std::string_view() : std::string_view(text).substr(question + 1);
  while (!rest.empty()) {
    const std::string_view pair = rest.substr(0, rest.find('&'));
    rest.remove_prefix(std::min(rest.size(), pair.size() + 1));
    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    LOCKSTEP_CHECK(equals != std::string_view::npos && (key == "rank" || key == "world_size"),
                   "[rendezvous] '{}' in '{}' is not understood; expected rank=R and world_size=W", pair, text);
    url.query.emplace(key, pair.substr(equals + 1));
  }
  return url;
}

/// Finds out who this process is: options before URL before environment.
void find_place(Rendezvous& found, const Url& url, const RendezvousOptions& options,
                const LauncherVariables& launcher) {
  const auto choose = [&](const std::optional<int>& option, std::string_view key, const std::optional<int>& variable,
                          std::string_view variable_name) {
    if (option) return *option;
    if (const auto entry = url.query.find(key); entry != url.query.end())
      return parse_number(entry->second, key, options.url);
    if (launcher.launcher == "PMIx" && key == "world_size" && !variable)
      LOCKSTEP_CHECK(false, "[rendezvous] PMIx tells rank {} but not the size of the job; set WORLD_SIZE and RANK",
                     launcher.rank.value_or(0));
    LOCKSTEP_CHECK(variable,
                   "[rendezvous] {} is not known: set the environment variable {}{}, or start the program with "
                   "lockstep-run",
                   key, variable_name,
                   url.scheme == "env" ? std::string() : fmt::format(" or add ?{}=N to '{}'", key, options.url));
    return *variable;
  };
  found.rank = choose(options.rank, "rank", launcher.rank, "RANK");
  found.world_size = choose(options.world_size, "world_size", launcher.world_size, "WORLD_SIZE");
  LOCKSTEP_CHECK(found.world_size >= 1, "[rendezvous] WORLD_SIZE is {}; expected at least 1", found.world_size);
  LOCKSTEP_CHECK(found.rank < found.world_size, "[rendezvous] RANK is {} in a world of {}; expected 0 to {}",
                 found.rank, found.world_size, found.world_size - 1);
}

bool on_one_machine(const Rendezvous& found, const LauncherVariables& launcher, const std::string& host) {
  if (launcher.local_world_size) return *launcher.local_world_size == found.world_size;
  return host.empty() || is_loopback(host);
}

void meet_at(Rendezvous& found, const std::string& host, int port, const RendezvousOptions& options,
             const Environment& environment) {
  LOCKSTEP_CHECK(port >= 0 && port <= 65'535, "[rendezvous] port {} is not between 0 and 65535", port);
  const bool hosted = variable(environment, "LOCKSTEP_STORE_HOSTED") == "1";
  LOCKSTEP_CHECK(port != 0 || found.world_size == 1,
                 "[rendezvous] port 0 means any free port, which the other ranks "
                 "cannot know; name one (MASTER_PORT), or let lockstep-run choose it");
  const std::string token = options.token ? *options.token : variable(environment, "LOCKSTEP_TOKEN");
  // A launcher that holds the store says where; a job that holds its own on one machine needs no name service.
  found.master_addr = found.single_node && !hosted ? kLoopback : host;
  found.master_port = port;
  if (!hosted && found.rank == 0) {
    TCPStoreServerOptions server{
        .bind_address = found.master_addr, .port = static_cast<std::uint16_t>(port), .token = token};
    try {
      found.server = std::make_unique<TCPStoreServer>(server);
    } catch (const StoreError& error) {
      // Behind a translated or floating address this machine does not have it itself.
      if (std::string_view(error.what()).find("must be one of this machine's") == std::string_view::npos) throw;
      logging::info("{} is not an address of this machine; the store listens on all of them", found.master_addr);
      server.bind_address = "0.0.0.0";
      found.server = std::make_unique<TCPStoreServer>(server);
    }
    found.master_port = found.server->port();
  }
  // Rank 0 reaches its own server wherever it is bound.
  const bool wildcard = found.server && found.server->bind_address() == "0.0.0.0";
  found.store = std::make_shared<TCPStore>(TCPStoreOptions{.host = wildcard ? kLoopback : found.master_addr,
                                                           .port = static_cast<std::uint16_t>(found.master_port),
                                                           .token = token,
                                                           .timeout = options.timeout});
}

void meet_by_environment(Rendezvous& found, const LauncherVariables& launcher, const RendezvousOptions& options,
                         const Environment& environment) {
  std::string host = launcher.master_addr;
  if (host.empty() && launcher.derived_port) host = found.single_node ? kLoopback : launcher.first_node;
  LOCKSTEP_CHECK(!host.empty(),
                 "[rendezvous] the environment variable MASTER_ADDR is missing: set it to the address of "
                 "rank 0's machine (127.0.0.1 for a job on one machine), or start the program with lockstep-run");
  std::optional<int> port = launcher.master_port;
  if (!port) port = launcher.derived_port;
  LOCKSTEP_CHECK(port,
                 "[rendezvous] the environment variable MASTER_PORT is missing: set it to a free port of {}, the "
                 "same for all ranks, or start the program with lockstep-run",
                 host);
  // See Note [Who holds the store].
  if (launcher.master_port && variable(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True") ++*port;
  meet_at(found, host, *port, options, environment);
}

}  // namespace

Rendezvous rendezvous(const RendezvousOptions& options, const Environment& environment) {
  const Url url = parse_url(options.url);
  const LauncherVariables launcher = read_launcher(environment);
  Rendezvous found;
  find_place(found, url, options, launcher);
  if (url.scheme == "env") {
    LOCKSTEP_CHECK(url.place.empty(),
                   "[rendezvous] '{}' names a place; env:// takes it from MASTER_ADDR and MASTER_PORT", options.url);
    found.single_node = on_one_machine(found, launcher, launcher.master_addr);
    meet_by_environment(found, launcher, options, environment);
  } else if (url.scheme == "tcp") {
    const std::size_t colon = url.place.rfind(':');
    LOCKSTEP_CHECK(colon != std::string::npos && colon > 0,
                   "[rendezvous] '{}' names no host and port; expected "
                   "tcp://HOST:PORT",
                   options.url);
    std::string host = url.place.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);  // [::1]
    const int port = parse_number(std::string_view(url.place).substr(colon + 1), "the port", options.url);
    Environment here = environment;
    here.erase("LOCKSTEP_STORE_HOSTED");  // the launcher's store is elsewhere
    found.single_node = on_one_machine(found, launcher, host);
    meet_at(found, host, port, options, here);
  } else if (url.scheme == "file") {
    LOCKSTEP_CHECK(url.place.starts_with('/'), "[rendezvous] '{}' names no absolute path; expected file:///PATH",
                   options.url);
    // A restarted group must not find what the one before it left behind.
    const std::string restarts = variable(environment, "LOCKSTEP_RESTART_COUNT");
    const bool first = restarts.empty() || restarts == "0";
    found.store = std::make_shared<FileStore>(first ? url.place : url.place + ".restart-" + restarts, found.world_size,
                                              options.timeout);
    found.master_addr = launcher.master_addr;
    found.single_node = on_one_machine(found, launcher, found.master_addr);
  } else {
    LOCKSTEP_CHECK(false, "[rendezvous] '{}' has the scheme '{}'; expected env, tcp or file", options.url, url.scheme);
  }
  found.local_rank = launcher.local_rank.value_or(found.rank);
  found.local_world_size = launcher.local_world_size.value_or(found.world_size);
  if (url.scheme != "file") {
    const std::string restarts = variable(environment, "LOCKSTEP_RESTART_COUNT");
    found.store = std::make_shared<PrefixStore>("group-" + (restarts.empty() ? "0" : restarts), found.store);
  }
  return found;
}

}  // namespace lockstep::distributed
