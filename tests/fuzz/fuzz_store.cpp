// The store's server: two connections, and what they send, in pieces. An input is a byte whose two low bits say which
// of the connections prove the token first (the others send their handshake from the input as well), and then pieces:
// a byte with the connection in its lowest bit and a length above, and that many bytes. If bit 2 of the first byte is
// set, each piece is a whole message and gets its length in front. A length of 127 closes the connection instead.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "lockstep/distributed/store/request_handler.h"
#include "lockstep/distributed/store/server_connection.h"
#include "tests/fuzz/fuzz.h"

namespace {

using namespace lockstep::distributed;
using namespace lockstep::fuzz;
using Clock = std::chrono::steady_clock;

constexpr char kToken[] = "a token";
constexpr std::size_t kStoreBytes = std::size_t{1} << 20;
constexpr int kClose = 127;

/// A connection of the server's with its client's end.
class Peer {
 public:
  Peer() {
    std::array<int, 2> ends{};
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
    client_ = lockstep::FileDescriptor(ends[1]);
    server_.emplace(lockstep::FileDescriptor(ends[0]), kToken, Clock::now() + Milliseconds(1000), false);
  }

  bool open() const { return server_.has_value(); }
  ServerConnection& server() { return *server_; }
  void drop() { server_.reset(); }
  void close_client() { client_ = lockstep::FileDescriptor(); }

  void send(std::string_view bytes) {
    if (client_) (void)!::send(client_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  std::string receive() {
    std::array<char, 4096> chunk;
    std::string received;
    for (ssize_t n = 0; client_ && (n = ::recv(client_.get(), chunk.data(), chunk.size(), MSG_DONTWAIT)) > 0;)
      received.append(chunk.data(), static_cast<std::size_t>(n));
    return received;
  }

 private:
  lockstep::FileDescriptor client_;
  std::optional<ServerConnection> server_;
};

/// As TCPStoreServer does it.
void serve(std::array<Peer, 2>& peers, Peer& peer, RequestHandler& handler) {
  try {
    bool keep = peer.server().transfer();
    while (keep) {
      const auto request = peer.server().next_request();
      if (!request) break;
      if (handler.handle(peer.server(), *request))
        for (Peer& other : peers)
          if (other.open() && other.server().waiting()) handler.finish_wait(other.server(), Clock::now());
      keep = peer.server().transfer();
    }
    if (!keep) peer.drop();
  } catch (const StoreError&) {
    peer.drop();
  }
}

void prove_token(std::array<Peer, 2>& peers, Peer& peer, RequestHandler& handler) {
  serve(peers, peer, handler);
  const std::string greeting = peer.receive();
  require(greeting.size() == wire::kHello.size() + wire::kNonceBytes && greeting.starts_with(wire::kHello));
  const std::string nonce(wire::kNonceBytes, 'n');
  peer.send(nonce + wire::proof(kToken, "client", greeting.substr(wire::kHello.size()), nonce));
  serve(peers, peer, handler);
  require(peer.open() && peer.server().admitted());
  require(peer.receive()[0] == wire::kAdmitted);
}

std::string piece(std::string_view bytes, bool framed) {
  std::string text;
  if (framed)
    for (std::size_t i = 0; i < wire::kLengthBytes; ++i)
      text += static_cast<char>(std::uint64_t{bytes.size()} >> (8 * i) & 0xff);
  return text += bytes;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  RequestHandler handler(kStoreBytes);
  std::array<Peer, 2> peers;
  const int proving = input.byte();
  for (std::size_t i = 0; i < peers.size(); ++i)
    if (proving >> i & 1) prove_token(peers, peers[i], handler);
  while (!input.at_end()) {
    const std::uint8_t head = input.byte();
    const std::size_t which = head & 1;
    Peer& peer = peers[which];
    const int length = head >> 1;
    if (length == kClose)
      peer.close_client();
    else
      peer.send(piece(input.take(static_cast<std::size_t>(length)), proving & 4));
    if (!peer.open()) continue;
    serve(peers, peer, handler);
    // Nobody guesses a proof.
    require(!peer.open() || (proving >> which & 1) || !peer.server().admitted());
    peer.receive();
  }
  for (Peer& peer : peers)
    if (peer.open() && peer.server().waiting()) handler.finish_wait(peer.server(), peer.server().waiting()->deadline);
  return 0;
}
