#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/posix.h"

namespace lockstep::distributed {

inline constexpr Milliseconds kLookupTime{300'000};
inline constexpr const char* kRaiseLimit = "raise the limit on open files (ulimit -n)";

// A `host` may be a name. Looking it up ends at the deadline, by TimeoutError; a literal address needs no looking up.

/// Listens on `host`:`port` (0: any free port). Throws StoreError naming both and the remedy if the port is in use.
FileDescriptor listen_on(const std::string& host, std::uint16_t port, Deadline deadline = deadline_in(kLookupTime));
/// Takes the address without listening on it, so nobody can connect. Throws as listen_on() does.
FileDescriptor bind_to(const std::string& host, std::uint16_t port, Deadline deadline = deadline_in(kLookupTime));
/// The port a socket is bound to.
std::uint16_t bound_port(int fd);
/// Connects, trying again while nobody listens yet, but not past `listens_by`. Throws TimeoutError naming host and port
/// at the deadline, and StoreError if nobody listens by then, if `host` cannot be resolved, or if this machine's
/// loopback interface, which leads there, is down.
FileDescriptor connect_to(const std::string& host, std::uint16_t port, Deadline deadline,
                          Deadline listens_by = Deadline::max());
/// Writes or reads exactly `bytes` bytes. Throw ConnectionError when the other side is gone, TimeoutError at the
/// deadline.
void send_all(int fd, const void* data, std::size_t bytes, Deadline deadline);
void recv_all(int fd, void* data, std::size_t bytes, Deadline deadline);
/// True for 127.0.0.0/8, ::1 and names that mean nothing else. Throws StoreError if `host` cannot be resolved.
bool is_loopback(const std::string& host, Deadline deadline);
/// The address by which processes of this machine reach each other: 127.0.0.1, or ::1 where there is no IPv4.
const std::string& loopback_address();
/// Where a server has to listen that others reach as `host`: on `host`, if that is an address of this machine, and
/// else on all ("0.0.0.0"): behind a translated or floating address, and where this machine knows its own name as a
/// loopback address that is none for others (Debian's 127.0.1.1). Throws StoreError if `host` cannot be resolved.
std::string listen_address(const std::string& host, Deadline deadline);
/// The numeric address of this machine's interface that leads to `host`; for this machine's own name, where that is a
/// loopback address here, the first of an interface that is up. Throws StoreError if there is none.
std::string local_address_towards(const std::string& host, std::uint16_t port, Deadline deadline);
/// All addresses of a host as numbers. Throws StoreError if it cannot be resolved.
std::vector<std::string> addresses_of(const std::string& host, Deadline deadline);

}  // namespace lockstep::distributed
