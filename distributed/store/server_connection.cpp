#include "lockstep/distributed/store/server_connection.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lockstep/core/check.h"
#include "lockstep/core/sha256.h"
#include "lockstep/distributed/store/peer_owner.h"

namespace lockstep::distributed {
namespace {

constexpr std::size_t kAnswerBytes = wire::kNonceBytes + wire::kProofBytes;
constexpr std::size_t kReceiveChunk = std::size_t{64} << 10;

std::string peer_name(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return fmt::format("{}:{}", host, port);
}

}  // namespace

ServerConnection::ServerConnection(FileDescriptor fd, std::string token, Deadline handshake_deadline, bool full)
    : fd_(std::move(fd)),
      peer_(peer_name(fd_.get())),
      token_(std::move(token)),
      handshake_deadline_(handshake_deadline),
      nonce_(wire::random_bytes(wire::kNonceBytes)),
      full_(full) {
  to_send_ = std::string(wire::kHello) + nonce_;
}

short ServerConnection::events() const {
  // While an answer waits to be read, requests wait to be sent.
  return sent_ < to_send_.size() ? POLLOUT : POLLIN;
}

bool ServerConnection::transfer() {
  if (!flush()) return false;
  if (closing_) return sent_ < to_send_.size();
  if (!receive()) return false;
  if (!admitted_ && received_.size() >= kAnswerBytes) {
    check_proof();
    return flush() && (!closing_ || sent_ < to_send_.size());
  }
  return true;
}

bool ServerConnection::flush() {
  while (sent_ < to_send_.size()) {
    const ssize_t n = send(fd(), to_send_.data() + sent_, to_send_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent_ += static_cast<std::size_t>(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  to_send_.clear();
  sent_ = 0;
  return true;
}

bool ServerConnection::receive() {
  char chunk[kReceiveChunk];
  for (;;) {
    if (admitted_) check_length();
    const std::size_t limit = admitted_ ? wire::kLengthBytes + wire::kMaxPayload : kAnswerBytes;
    if (received_.size() >= limit) return true;
    const ssize_t n = recv(fd(), chunk, std::min(sizeof(chunk), limit - received_.size()), MSG_DONTWAIT);
    if (n > 0) {
      if (wait_) throw StoreError("it sends a request while another waits");
      received_.append(chunk, static_cast<std::size_t>(n));
    } else if (n == 0) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
}

void ServerConnection::check_length() const {
  if (received_.size() < wire::kLengthBytes) return;
  const std::uint64_t length = wire::decode_integer(received_.data());
  if (length == 0 || length > wire::kMaxPayload)
    throw StoreError(fmt::format("it claims a message of {} bytes; 1 to {} are allowed", length, wire::kMaxPayload));
}

void ServerConnection::check_proof() {
  const std::string client_nonce = received_.substr(0, wire::kNonceBytes);
  const std::string_view given = std::string_view(received_).substr(wire::kNonceBytes, wire::kProofBytes);
  const bool right = equal_constant_time(given, wire::proof(token_, "client", nonce_, client_nonce));
  int open_error = 0;
  const bool unknown = right && token_.empty() && peer_owner(fd(), &open_error) != ::geteuid();
  full_ = full_ || open_error != 0;  // of descriptors there is not one more
  const bool other_user = unknown && open_error == 0;
  const bool gone = other_user && !is_established(fd());  // then nobody knows whose it was
  received_.clear();
  admitted_ = right && !full_ && !other_user;
  closing_ = !admitted_;
  refusal_ = !right ? "wrong token"
             : other_user && !gone
                 ? "it belongs to another user, or the system does not say to whom, and this job has no token"
                 : "";
  to_send_ += !right ? wire::kWrongToken : other_user ? wire::kOtherUser : full_ ? wire::kFull : wire::kAdmitted;
  // Only a client that knows the token learns that the server knows it as well.
  to_send_ += right ? wire::proof(token_, "server", nonce_, client_nonce) : std::string(wire::kProofBytes, '\0');
}

std::optional<std::string> ServerConnection::next_request() {
  if (!admitted_ || closing_ || wait_ || !to_send_.empty() || received_.size() < wire::kLengthBytes) return {};
  check_length();
  const auto length = static_cast<std::size_t>(wire::decode_integer(received_.data()));
  if (received_.size() - wire::kLengthBytes < length) return {};
  std::string payload = received_.substr(wire::kLengthBytes, length);
  received_.erase(0, wire::kLengthBytes + length);
  return payload;
}

void ServerConnection::respond(wire::Status status, std::string_view body) {
  std::string message = wire::Writer().byte(static_cast<std::uint8_t>(status)).message();
  const std::uint64_t length = 1 + body.size();
  for (std::size_t i = 0; i < wire::kLengthBytes; ++i) message[i] = static_cast<char>(length >> (8 * i) & 0xff);
  to_send_ += message;
  to_send_ += body;
}

}  // namespace lockstep::distributed
