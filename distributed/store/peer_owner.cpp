#include "lockstep/distributed/store/peer_owner.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/parse_number.h"

namespace lockstep::distributed {
namespace {

// Field 4 of a line. A connection that is being closed has no owner any more, and is shown as root's.
constexpr const char* kEstablished = "01";
// The kernel writes the table in pieces, between which connections come and go: a line may be passed over.
constexpr int kLooks = 5;

/// As the tables write it: the address in words of the machine's own byte order, then the port.
std::string table_entry(const sockaddr_storage& address) {
  std::string text;
  const auto append_words = [&](const void* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      std::uint32_t word = 0;
      std::memcpy(&word, static_cast<const char*>(bytes) + 4 * i, 4);
      text += fmt::format("{:08X}", word);
    }
  };
  if (address.ss_family == AF_INET) {
    const auto& ipv4 = reinterpret_cast<const sockaddr_in&>(address);
    append_words(&ipv4.sin_addr, 1);
    return text + fmt::format(":{:04X}", ntohs(ipv4.sin_port));
  }
  const auto& ipv6 = reinterpret_cast<const sockaddr_in6&>(address);
  append_words(&ipv6.sin6_addr, 4);
  return text + fmt::format(":{:04X}", ntohs(ipv6.sin6_port));
}

/// The number by which a user namespace shows every user that has none in it, whoever that is.
uid_t unknown_user() {
  uid_t number = 0;
  return std::ifstream("/proc/sys/kernel/overflowuid") >> number ? number : 65'534;
}

std::optional<uid_t> find_owner(const char* path, const std::string& local, const std::string& remote,
                                int* open_error) {
  errno = 0;
  std::ifstream table(path);
  if (open_error) *open_error = !table && (errno == EMFILE || errno == ENFILE) ? errno : 0;
  for (std::string line; std::getline(table, line);) {
    std::istringstream text(line);
    std::string number, local_address, remote_address, state, queues, timer, retransmits, user;
    text >> number >> local_address >> remote_address >> state >> queues >> timer >> retransmits >> user;
    if (local_address != local || remote_address != remote || state != kEstablished) continue;
    const auto owner = parse_number<uid_t>(user);
    return owner == unknown_user() ? std::nullopt : owner;
  }
  return {};
}

}  // namespace

std::optional<uid_t> peer_owner(int fd, int* open_error) {
  if (open_error) *open_error = 0;
  sockaddr_storage here{}, there{};
  socklen_t here_size = sizeof(here), there_size = sizeof(there);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size) != 0 ||
      ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size) != 0 ||
      (here.ss_family != AF_INET && here.ss_family != AF_INET6))
    return {};
  // The peer's own line: its local address is our remote one.
  const std::string local = table_entry(there), remote = table_entry(here);
  const char* const path = here.ss_family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6";
  std::optional<uid_t> owner;
  for (int look = 0; look < kLooks && !owner && is_established(fd); ++look)
    owner = find_owner(path, local, remote, open_error);
  return owner;
}

bool is_established(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 && info.tcpi_state == TCP_ESTABLISHED;
}

}  // namespace lockstep::distributed
