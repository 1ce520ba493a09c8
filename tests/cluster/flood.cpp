#include "tests/cluster/flood.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <random>
#include <stdexcept>

namespace lockstep::testing {
namespace {

constexpr std::size_t kGarbageBytes = std::size_t{64} << 10;
constexpr std::size_t kMostGarbage = 4 * kGarbageBytes;
constexpr std::chrono::milliseconds kTick{10};
constexpr std::chrono::milliseconds kPause{250};  // before a dropped client comes again, and between a slow one's bytes

}  // namespace

Flood::Flood(int port, int connections) : port_(port) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const auto needed = static_cast<rlim_t>(connections) + 128;
  if (limit.rlim_cur < needed) {
    limit.rlim_cur = std::min(needed, limit.rlim_max);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  std::mt19937 random(1);
  for (std::size_t i = 0; i < kGarbageBytes; ++i) garbage_ += static_cast<char>(random());
  for (int i = 0; i < connections; ++i) clients_.push_back({static_cast<Kind>(i % 4)});
  thread_ = std::thread([this] { run(); });
}

Flood::~Flood() {
  ending_ = true;
  thread_.join();
}

void Flood::run() {
  while (!ending_) {
    const auto now = std::chrono::steady_clock::now();
    for (Client& client : clients_)
      if (now >= client.next) look_after(client, now);
    std::this_thread::sleep_for(kTick);
  }
  for (Client& client : clients_) drop(client);
}

void Flood::connect(Client& client) {
  client.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (client.fd < 0) return;
  // Reset at the end: thousands of closed connections that linger would take all ports of the machine.
  const linger reset{1, 0};
  setsockopt(client.fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port_));
  if (::connect(client.fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 && errno != EINPROGRESS) {
    close(client.fd);
    client.fd = -1;
    return;
  }
  client.sent = 0;
  ++open_;
  ++opened_;
}

void Flood::drop(Client& client) {
  if (client.fd < 0) return;
  close(client.fd);
  client.fd = -1;
  --open_;
}

bool Flood::send(Client& client, std::size_t bytes) {
  const ssize_t n = ::send(client.fd, garbage_.data(), bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n > 0) {
    bytes_sent_ += n;
    client.sent += static_cast<std::size_t>(n);
  }
  return n >= 0 || errno == EAGAIN || errno == EINPROGRESS;
}

void Flood::look_after(Client& client, std::chrono::steady_clock::time_point now) {
  if (client.fd < 0) {
    connect(client);
    if (client.fd < 0) client.next = now + kPause;
    return;
  }
  std::array<char, 4096> received;
  const ssize_t n = recv(client.fd, received.data(), received.size(), MSG_DONTWAIT);
  bool keep = n > 0 || (n < 0 && (errno == EAGAIN || errno == ENOTCONN));
  switch (client.kind) {
    case Kind::silent:
      break;
    case Kind::garbage:
      if (keep && client.sent < kMostGarbage) keep = send(client, garbage_.size());
      break;
    case Kind::slow:
      keep = keep && send(client, 1);
      client.next = now + kPause;
      break;
    case Kind::wrong_proof:
      if (n > 0 && client.sent == 0) keep = send(client, 64);
      break;
  }
  if (keep) return;
  drop(client);
  client.next = now + kPause;
}

}  // namespace lockstep::testing
