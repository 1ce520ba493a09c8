#include "lockstep/distributed/store/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>

#include "lockstep/core/check.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, std::uint16_t port, int type, int flags = 0) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = type;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0)
    throw StoreError(
        fmt::format("[TCPStore] cannot resolve host '{}': {}; check MASTER_ADDR", host, gai_strerror(error)));
  return {list, &freeaddrinfo};
}

bool is_numeric(const std::string& host) {
  in6_addr address;
  return inet_pton(AF_INET, host.c_str(), &address) == 1 || inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

/// resolve() with an end. Name servers that do not answer may hold it up for minutes, so it has a thread of its own,
/// which is left behind at the deadline. Throws TimeoutError then.
AddressList resolve_until(const std::string& host, std::uint16_t port, Deadline deadline, int type = SOCK_STREAM) {
  if (is_numeric(host)) return resolve(host, port, type, AI_NUMERICHOST);
  std::packaged_task<AddressList()> lookup([host, port, type] { return resolve(host, port, type); });
  std::future<AddressList> found = lookup.get_future();
  start_thread("resolving a name", std::move(lookup)).detach();
  if (found.wait_until(deadline) != std::future_status::ready)
    throw TimeoutError(
        fmt::format("[TCPStore] the name '{}' was not resolved within the deadline; check the name servers "
                    "(/etc/resolv.conf), or give the address as a number (MASTER_ADDR)",
                    host));
  return found.get();
}

/// False at the deadline.
bool wait_ready(int fd, short events, Deadline deadline) {
  for (;;) {
    pollfd entry{fd, events, 0};
    const int left = static_cast<int>(std::min(time_left(deadline), Milliseconds(60'000)).count());
    const int ready = poll(&entry, 1, left);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw StoreError(fmt::format("[TCPStore] poll: {}", std::strerror(errno)));
    if (ready == 0 && left == 0) return false;
  }
}

/// One attempt at one address; an invalid descriptor and errno if it fails.
FileDescriptor try_connect(const addrinfo& address, Deadline deadline) {
  FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd) return fd;
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return FileDescriptor();
    if (!wait_ready(fd.get(), POLLOUT, deadline)) {
      errno = ETIMEDOUT;
      return FileDescriptor();
    }
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
      errno = error;
      return FileDescriptor();
    }
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

bool is_loopback(const sockaddr* address) {
  if (address->sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in*>(address)->sin_addr.s_addr) >> 24 == 127;
  if (address->sa_family == AF_INET6)
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  return false;
}

FileDescriptor take_address(const std::string& host, std::uint16_t port, bool listens, Deadline deadline) {
  const AddressList list = resolve_until(host, port, deadline);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = list.get(); address; address = address->ai_next) {
    FileDescriptor fd(socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (fd && setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
        bind(fd.get(), address->ai_addr, address->ai_addrlen) == 0 && (!listens || listen(fd.get(), SOMAXCONN) == 0))
      return fd;
    error = errno;
  }
  if (error == EADDRINUSE)
    throw StoreError(
        fmt::format("[TCPStore] cannot listen on {}:{}: the port is in use; choose another one "
                    "(MASTER_PORT, --master-port) or stop the program that holds it",
                    host, port));
  const char* const advice = error == EMFILE || error == ENFILE ? kRaiseLimit
                             : error == EACCES                  ? "choose a port from 1024 on"
                                                                : "the address must be one of this machine's";
  throw StoreError(fmt::format("[TCPStore] cannot listen on {}:{}: {}; {}", host, port, std::strerror(error), advice));
}

}  // namespace

FileDescriptor listen_on(const std::string& host, std::uint16_t port, Deadline deadline) {
  return take_address(host, port, /*listens=*/true, deadline);
}

FileDescriptor bind_to(const std::string& host, std::uint16_t port, Deadline deadline) {
  return take_address(host, port, /*listens=*/false, deadline);
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  LOCKSTEP_ASSERT(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0, "getsockname: {}",
                  std::strerror(errno));
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

FileDescriptor connect_to(const std::string& host, std::uint16_t port, Deadline deadline, Deadline listens_by) {
  const AddressList list = resolve_until(host, port, deadline);
  auto pause = std::chrono::milliseconds(5);
  for (;;) {
    int error = 0;
    bool loopback_is_down = true;
    for (const addrinfo* address = list.get(); address; address = address->ai_next) {
      if (FileDescriptor fd = try_connect(*address, deadline)) return fd;
      error = errno;
      loopback_is_down = loopback_is_down && error == ENETUNREACH && is_loopback(address->ai_addr);
    }
    // Of this process's or machine's own making, which time does not mend.
    if (loopback_is_down)
      throw StoreError(
          fmt::format("[TCPStore] no connection to {}:{}: {}: this machine's loopback interface is down; bring it up: "
                      "ip link set lo up",
                      host, port, std::strerror(error)));
    if (error == EMFILE || error == ENFILE)
      throw StoreError(
          fmt::format("[TCPStore] no connection to {}:{}: {}; {}", host, port, std::strerror(error), kRaiseLimit));
    if (error == ECONNREFUSED && has_passed(listens_by))
      throw StoreError(fmt::format(
          "[TCPStore] no connection to {}:{}: nobody listens there any more ({}); has rank 0, or the launcher, ended?",
          host, port, std::strerror(error)));
    if (has_passed(deadline - pause))
      throw TimeoutError(
          fmt::format("[TCPStore] no connection to {}:{} within the deadline ({}); is rank 0, or the "
                      "launcher, running there, and the port open?",
                      host, port, std::strerror(error)));
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(200));
  }
}

namespace {

constexpr const char* kClosed = "[TCPStore] the other side closed the connection";

/// A process that ends resets its connections if it had not read all that had come.
[[noreturn]] void throw_broken(int error) {
  if (error == ECONNRESET || error == EPIPE) throw ConnectionError(kClosed);
  throw ConnectionError(fmt::format("[TCPStore] the connection broke: {}", std::strerror(error)));
}

}  // namespace

void send_all(int fd, const void* data, std::size_t bytes, Deadline deadline) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = send(fd, next, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      next += sent;
      bytes -= static_cast<std::size_t>(sent);
    } else if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      if (!wait_ready(fd, POLLOUT, deadline)) throw TimeoutError("[TCPStore] the other side does not read");
    } else if (sent < 0 && errno != EINTR) {
      throw_broken(errno);
    }
  }
}

void recv_all(int fd, void* data, std::size_t bytes, Deadline deadline) {
  char* next = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(fd, next, bytes, MSG_DONTWAIT);
    if (got > 0) {
      next += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw ConnectionError(kClosed);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!wait_ready(fd, POLLIN, deadline)) throw TimeoutError("[TCPStore] the other side does not answer");
    } else if (errno != EINTR) {
      throw_broken(errno);
    }
  }
}

bool is_loopback(const std::string& host, Deadline deadline) {
  const AddressList list = resolve_until(host, 0, deadline);
  for (const addrinfo* address = list.get(); address; address = address->ai_next)
    if (!is_loopback(address->ai_addr)) return false;
  return true;
}

namespace {

/// What stands for this machine itself on every machine.
bool says_loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

bool can_bind(const addrinfo& address) {
  const FileDescriptor fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return fd && bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
}

std::string numeric(const sockaddr* address) {
  char text[NI_MAXHOST];
  const socklen_t size = address->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text;
}

/// An address of this machine that others may reach; empty if there is none.
std::string outward_address() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return {};
  std::string found;
  for (const ifaddrs* entry = list; entry && found.empty(); entry = entry->ifa_next)
    if (entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET && (entry->ifa_flags & IFF_UP) != 0 &&
        !is_loopback(entry->ifa_addr))
      found = numeric(entry->ifa_addr);
  freeifaddrs(list);
  return found;
}

}  // namespace

const std::string& loopback_address() {
  static const std::string address = [] {
    const auto can_bind_to = [](const char* host) {
      const AddressList list = resolve(host, 0, SOCK_STREAM, AI_NUMERICHOST);
      return can_bind(*list);
    };
    return !can_bind_to("127.0.0.1") && can_bind_to("::1") ? "::1" : "127.0.0.1";
  }();
  return address;
}

std::string listen_address(const std::string& host, Deadline deadline) {
  if (says_loopback(host)) return host;
  const AddressList list = resolve_until(host, 0, deadline);
  for (const addrinfo* address = list.get(); address; address = address->ai_next)
    if (!is_loopback(address->ai_addr) && can_bind(*address)) return host;
  return "0.0.0.0";
}

std::vector<std::string> addresses_of(const std::string& host, Deadline deadline) {
  const AddressList list = resolve_until(host, 0, deadline);
  std::vector<std::string> found;
  for (const addrinfo* address = list.get(); address; address = address->ai_next)
    found.push_back(numeric(address->ai_addr));
  return found;
}

std::string local_address_towards(const std::string& host, std::uint16_t port, Deadline deadline) {
  const AddressList list = resolve_until(host, port, deadline, SOCK_DGRAM);
  int error = 0;
  for (const addrinfo* address = list.get(); address; address = address->ai_next) {
    // Connecting a datagram socket sends nothing; it makes the kernel choose a route and with it a source address.
    FileDescriptor fd(socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage local{};
    socklen_t size = sizeof(local);
    if (fd && connect(fd.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &size) == 0) {
      const auto* const found = reinterpret_cast<const sockaddr*>(&local);
      std::string text = is_loopback(found) && !says_loopback(host) ? outward_address() : numeric(found);
      if (!text.empty()) return text;
    }
    error = errno;
  }
  throw StoreError(
      fmt::format("[rendezvous] no interface of this machine leads to {}:{}: {}", host, port, std::strerror(error)));
}

}  // namespace lockstep::distributed
