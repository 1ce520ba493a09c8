#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "lockstep/distributed/store/dictionary.h"
#include "lockstep/distributed/store/server_connection.h"

namespace lockstep::distributed {

/// The dictionary of a TCPStoreServer and what admitted clients ask of it.
class RequestHandler {
 public:
  explicit RequestHandler(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  /// Answers a request, or makes the connection wait. True if others that wait may have got what they wait for. Throws
  /// StoreError for a request that is malformed.
  bool handle(ServerConnection& connection, std::string_view payload);
  /// Answers a connection's wait if its keys are there or its time is up.
  void finish_wait(ServerConnection& connection, Deadline now);

 private:
  bool has_room(ServerConnection& connection, std::string_view key, std::string_view value) const;

  std::size_t max_bytes_;
  Dictionary dictionary_;
};

}  // namespace lockstep::distributed
