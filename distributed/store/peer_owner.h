#pragma once

#include <sys/types.h>

#include <optional>

namespace lockstep::distributed {

/// The user to whom the other end of a TCP connection within this machine belongs, as the kernel's tables
/// (/proc/net/tcp, /proc/net/tcp6) say; empty if they cannot be read or do not hold it: it has been closed, or is on
/// another machine or in another network namespace. `open_error`, if not null: EMFILE or ENFILE if it is for want of a
/// descriptor that they cannot be read, else 0.
std::optional<uid_t> peer_owner(int fd, int* open_error = nullptr);

/// False once either end of a TCP connection has begun to close it.
bool is_established(int fd);

}  // namespace lockstep::distributed
