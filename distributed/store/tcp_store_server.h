#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/core/own_process.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

struct TCPStoreServerOptions {
  /// Where to listen. Other than loopback addresses need a token.
  std::string bind_address = "127.0.0.1";
  /// 0: any free port; see TCPStoreServer::port().
  std::uint16_t port = 0;
  /// The job's secret; see make_token(). Clients that do not know it are turned away.
  std::string token = {};
  /// Further clients are told that the store is full.
  int max_connections = 4096;
  /// A client that has not proved the token by then is dropped.
  Milliseconds handshake_timeout{10'000};
  /// Keys and values may not take more than this together.
  std::size_t max_bytes = std::size_t{256} << 20;
  /// Looking up bind_address, if that is a name, may take so long.
  Milliseconds lookup_timeout{300'000};
};

/// The server of TCPStore: a thread that keeps the dictionary and answers clients until the object goes. Usable alone,
/// by a launcher; rank 0 of a job without one has its own. Messages are length-bounded: a client that claims more, or
/// sends anything malformed, is dropped with a line in the log, and nothing is allocated for it. Connections that have
/// proved nothing yet are few and short-lived, and so are the lines about them: see Note [Floods].
class TCPStoreServer {
 public:
  /// Throws StoreError if the port is in use or the address needs a token and there is none.
  explicit TCPStoreServer(TCPStoreServerOptions options = {});
  ~TCPStoreServer();
  TCPStoreServer(const TCPStoreServer&) = delete;
  TCPStoreServer& operator=(const TCPStoreServer&) = delete;

  std::uint16_t port() const;
  const std::string& bind_address() const;
  /// Clients connected now that have proved the token.
  int connections() const;
  /// Waits until no client is connected, or the time is up. True in the first case.
  bool wait_until_idle(Milliseconds timeout) const;

 private:
  class Loop;
  OwnProcess made_in_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace lockstep::distributed
