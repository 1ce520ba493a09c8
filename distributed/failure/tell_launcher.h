#pragma once

#include <string_view>

namespace lockstep::distributed {

/// Note [Whose failure]
/// When one rank fails the others fail with it, and often end before it does, so the order in which processes end does
/// not tell the cause. A rank that ends by its own doing therefore says so to its launcher before it tells the other
/// ranks. One that fails because of another says that before its caller can know. Each is a line into the pipe that
/// LOCKSTEP_FAILURE_PIPE names, as the number of a descriptor that the process has inherited and the pipe's inode, by
/// which a descriptor that has become another file is recognised.

/// `own`: this rank ends by its own doing. Does nothing if no launcher of ours is there, or this process has told it of
/// a failure already. Never throws.
void tell_launcher(std::string_view reason, bool own) noexcept;

}  // namespace lockstep::distributed
