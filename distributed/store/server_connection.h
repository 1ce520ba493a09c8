#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/wire.h"

namespace lockstep::distributed {

/// One client of a TCPStoreServer: its socket, handshake, half-read request and unsent answer. Never blocks.
class ServerConnection {
 public:
  /// A get or wait whose keys were not there yet.
  struct Wait {
    std::vector<std::string> keys;
    Deadline deadline;
    bool wants_value;
  };

  /// Sends the greeting. With `full`, the client is told so and dropped once the handshake is through.
  ServerConnection(FileDescriptor fd, std::string token, Deadline handshake_deadline, bool full);

  int fd() const { return fd_.get(); }
  /// "10.0.0.7:40112".
  const std::string& peer() const { return peer_; }
  short events() const;

  /// Moves bytes both ways as far as the socket allows. False when the connection is over. Throws StoreError, with the
  /// reason, for a client that breaks the protocol.
  bool transfer();
  /// The next complete request; none before admission and while an answer is owed.
  std::optional<std::string> next_request();
  void respond(wire::Status status, std::string_view body);

  bool admitted() const { return admitted_; }
  /// Why the handshake ended without admission, for the log; empty if it did not.
  std::string_view refusal() const { return refusal_; }
  Deadline handshake_deadline() const { return handshake_deadline_; }
  void start_wait(Wait wait) { wait_ = std::move(wait); }
  const std::optional<Wait>& waiting() const { return wait_; }
  void end_wait() { wait_.reset(); }

 private:
  bool receive();
  bool flush();
  void check_length() const;
  void check_proof();

  FileDescriptor fd_;
  std::string peer_;
  std::string token_;
  Deadline handshake_deadline_;
  std::string nonce_;
  bool full_;
  bool admitted_ = false;
  std::string_view refusal_;
  bool closing_ = false;  // flush what is left, then end
  std::string received_;
  std::string to_send_;
  std::size_t sent_ = 0;
  std::optional<Wait> wait_;
};

}  // namespace lockstep::distributed
