#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/own_process.h"
#include "lockstep/distributed/store/file_store.h"
#include "lockstep/distributed/store/hash_store.h"
#include "lockstep/distributed/store/prefix_store.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/tcp_store_server.h"

namespace lockstep::distributed {
namespace {

constexpr Milliseconds kFarewell{10'000};

/// A server and its own client.
struct HeldStore {
  explicit HeldStore(const TCPStoreServerOptions& options) : server(std::make_unique<TCPStoreServer>(options)) {}
  ~HeldStore() {
    if (!made_in.is_here()) {
      // In a forked child: Note [Another process's objects].
      leave_for_ever(client, server);
      return;
    }
    client.reset();
    server->wait_until_idle(kFarewell);
  }

  OwnProcess made_in;
  std::unique_ptr<TCPStoreServer> server;
  std::unique_ptr<TCPStore> client;
};

}  // namespace

StorePtr make_hash_store() {
  return std::make_shared<HashStore>();
}

StorePtr make_file_store(const std::string& path, int world_size, Milliseconds timeout) {
  LOCKSTEP_CHECK(world_size >= 0, "[make_file_store] world_size is {}; expected 0 or more", world_size);
  return std::make_shared<FileStore>(path, world_size, timeout);
}

StorePtr make_tcp_store(const TCPStorePlace& place) {
  LOCKSTEP_CHECK(place.port != 0,
                 "[make_tcp_store] the port is 0, which means any free one, and the others cannot know it; name one");
  LOCKSTEP_CHECK(place.timeout.count() > 0, "[make_tcp_store] the timeout is {} ms; expected a positive one",
                 place.timeout.count());
  const Deadline deadline = deadline_in(place.timeout);
  TCPStoreOptions client{.host = place.host,
                         .port = place.port,
                         .token = place.token ? *place.token : environment_variable("LOCKSTEP_TOKEN").value_or(""),
                         .timeout = place.timeout,
                         .connected_by = deadline};
  if (!place.is_master) return std::make_shared<TCPStore>(std::move(client));
  auto held = std::make_shared<HeldStore>(TCPStoreServerOptions{.bind_address = listen_address(place.host, deadline),
                                                                .port = place.port,
                                                                .token = client.token,
                                                                .lookup_timeout = time_left(deadline)});
  if (held->server->bind_address() != place.host) client.host = loopback_address();
  held->client = std::make_unique<TCPStore>(std::move(client));
  return {held, held->client.get()};
}

StorePtr make_prefix_store(const std::string& prefix, StorePtr store) {
  return std::make_shared<PrefixStore>(prefix, std::move(store));
}

}  // namespace lockstep::distributed
