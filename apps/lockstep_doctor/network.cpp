#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <set>

#include "apps/lockstep_doctor/checks.h"
#include "lockstep/core/check.h"
#include "lockstep/distributed/store/socket.h"
#include "lockstep/distributed/store/tcp_store.h"
#include "lockstep/distributed/store/tcp_store_server.h"

namespace lockstep::doctor {
namespace {

using namespace distributed;

constexpr const char* kInterfaces = "interfaces";
constexpr const char* kPorts = "ports";

std::string text_of(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = address->sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return ::inet_ntop(address->sa_family, bytes, text.data(), text.size()) ? text.data() : "";
}

struct Interfaces {
  std::map<std::string, std::string> up;  // name: addresses
  std::set<std::string> addresses;
  bool loopback = false;
};

Interfaces interfaces() {
  Interfaces found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || (entry->ifa_flags & IFF_UP) == 0) continue;
    if (entry->ifa_addr->sa_family != AF_INET && entry->ifa_addr->sa_family != AF_INET6) continue;
    const std::string address = text_of(entry->ifa_addr);
    found.addresses.insert(address);
    if ((entry->ifa_flags & IFF_LOOPBACK) != 0) {
      found.loopback = true;
      continue;
    }
    if (address.starts_with("fe80:")) continue;  // of its own cable alone
    std::string& all = found.up[entry->ifa_name];
    all += (all.empty() ? "" : ", ") + address;
  }
  ::freeifaddrs(list);
  return found;
}

Finding chosen_interface(const std::string& wish, const Interfaces& here) {
  const std::string what = "LOCKSTEP_INTERFACE";
  if (here.up.contains(wish)) return {kInterfaces, what, Verdict::ok, fmt::format("{}: {}", wish, here.up.at(wish))};
  if (here.addresses.contains(wish)) return {kInterfaces, what, Verdict::ok, wish};
  std::string names;
  for (const auto& [name, addresses] : here.up) names += (names.empty() ? "" : ", ") + name;
  return {kInterfaces, what, Verdict::failed,
          fmt::format("'{}' is no interface or address of this machine that is up", wish),
          names.empty() ? std::string("unset it; this machine has no interface but the loopback")
                        : fmt::format("unset it, or set it to one of: {}", names)};
}

Finding host_name(const Request& request) {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  std::string text;
  bool loopback = false;
  try {
    const Deadline deadline = std::chrono::steady_clock::now() + request.timeout;
    for (const std::string& one : addresses_of(name.data(), deadline))
      if (!one.starts_with("fe80:")) text += (text.empty() ? "" : ", ") + one;
    loopback = is_loopback(name.data(), deadline);
  } catch (const Error& error) {
    return {kInterfaces, "host name", Verdict::note, fmt::format("'{}' has no address ({})", name.data(), error.what()),
            "for jobs on several machines, give MASTER_ADDR as a number, or add the name to /etc/hosts or the name "
            "service"};
  }
  if (loopback)
    return {kInterfaces, "host name", Verdict::note,
            fmt::format("'{}' is {}, which other machines cannot reach", name.data(), text),
            "for jobs on several machines, set MASTER_ADDR to an address above"};
  return {kInterfaces, "host name", Verdict::ok, fmt::format("{}: {}", name.data(), text)};
}

/// A store as rank 0 or lockstep-run serves it, and a rank that uses it.
Finding own_store(const Request& request) {
  Finding finding{kPorts, "store", Verdict::ok, {}};
  try {
    TCPStoreServer server(TCPStoreServerOptions{.token = "doctor"});
    TCPStore store({.host = "127.0.0.1", .port = server.port(), .token = "doctor", .timeout = request.timeout});
    const auto start = std::chrono::steady_clock::now();
    constexpr int kTimes = 100;
    for (int i = 0; i < kTimes; ++i) store.set("key", "value");
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    finding.found =
        fmt::format("served and used on 127.0.0.1:{}, {:.0f} us a request", server.port(), took.count() / kTimes);
  } catch (const Error& error) {
    finding.verdict = Verdict::failed;
    finding.found = error.what();
    finding.remedy =
        "bring the loopback interface up (ip link set lo up), and look for a firewall rule or a sandbox that forbids "
        "sockets";
  }
  return finding;
}

Finding port_is_free(int port) {
  Finding finding{kPorts, fmt::format("port {}", port), Verdict::ok, "free"};
  if (port < 1 || port > 65'535)
    return {kPorts, finding.what, Verdict::failed, "no port", "choose one between 1024 and 65535"};
  try {
    // On every interface, as a job of several nodes might; bound only, so that nobody can connect.
    const FileDescriptor taken = bind_to("0.0.0.0", static_cast<std::uint16_t>(port));
  } catch (const Error& error) {
    finding.verdict = Verdict::failed;
    finding.found = error.what();
    finding.remedy = fmt::format(
        "see who holds it (ss -ltnp 'sport = :{}'), end that, or choose another port (MASTER_PORT); on one machine "
        "lockstep-run finds a free one by itself",
        port);
  }
  int low = 0, high = 0;
  std::ifstream range("/proc/sys/net/ipv4/ip_local_port_range");
  if (finding.verdict == Verdict::ok && range >> low >> high && port >= low && port <= high) {
    finding.verdict = Verdict::note;
    finding.found =
        fmt::format("free, but among those that the system gives to outgoing connections ({} to {})", low, high);
    finding.remedy = fmt::format("choose one below {}, which nobody can get by chance", low);
  }
  return finding;
}

Finding way_to(const std::string& host, int port, const Request& request) {
  Finding finding{kPorts, fmt::format("{}:{}", host, port), Verdict::ok, {}};
  try {
    const Deadline deadline = std::chrono::steady_clock::now() + request.timeout;
    const std::string own = local_address_towards(host, static_cast<std::uint16_t>(port), deadline);
    finding.found = fmt::format("reached from {}", own);
    const FileDescriptor connection = connect_to(host, static_cast<std::uint16_t>(port), deadline);
  } catch (const Error& error) {
    finding.verdict = Verdict::failed;
    finding.found = error.what();
    finding.remedy = fmt::format(
        "start rank 0 or the launcher on {} first; if it runs, look at the name's address (getent hosts {}), the route "
        "(ip route get ...), and firewalls on the way to port {}",
        host, host, port);
  }
  return finding;
}

}  // namespace

Findings check_interfaces(const Request& request) {
  const Interfaces here = interfaces();
  Findings found;
  if (here.loopback)
    found.push_back({kInterfaces, "loopback", Verdict::ok, "up"});
  else
    found.push_back({kInterfaces, "loopback", Verdict::failed, "down; the ranks of one machine meet there",
                     "ip link set lo up (in a container or network namespace of your own: once, as root)"});
  for (const auto& [name, addresses] : here.up) found.push_back({kInterfaces, name, Verdict::ok, addresses});
  if (here.up.empty())
    found.push_back({kInterfaces, "others", Verdict::note, "none; jobs stay on this machine",
                     "for jobs on several machines, give this one a network (docker run --network host, say)"});
  for (const char* name : {"LOCKSTEP_INTERFACE", "GLOO_SOCKET_IFNAME"})
    if (const char* wish = std::getenv(name); wish && *wish) {
      found.push_back(chosen_interface(wish, here));
      found.back().what = name;
      break;
    }
  found.push_back(host_name(request));
  return found;
}

Findings check_ports(const Request& request) {
  constexpr int kUsualPort = 29'500;
  Findings found = {own_store(request)};
  if (!request.peer.empty())
    found.push_back(way_to(request.peer, request.port.value_or(kUsualPort), request));
  else if (request.port)
    found.push_back(port_is_free(*request.port));
  return found;
}

}  // namespace lockstep::doctor
