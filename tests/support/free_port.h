#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>
#include <stdexcept>

namespace lockstep::testing {

/// A TCP port on which nobody listens. It is drawn from below those that systems give to outgoing connections (32768
/// and up), which another process could take before the test listens.
inline int free_port() {
  std::random_device random;
  for (int attempt = 0; attempt < 1000; ++attempt) {
    const int port = 10'000 + static_cast<int>(random() % 10'000);
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<in_port_t>(port));
    const bool bound = ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    ::close(fd);
    if (bound) return port;
  }
  throw std::runtime_error("no free TCP port from 10000 to 19999");
}

}  // namespace lockstep::testing
