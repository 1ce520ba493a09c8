#pragma once

#include <chrono>
#include <string>

namespace lockstep {

/// The last failed check of this thread whose exception is still on its way or being handled; else empty, so that no
/// other exception is taken for one that was dealt with. Destructors that run while the stack unwinds cannot see the
/// exception; this is how they can tell others of it.
struct LastError {
  std::string message;
  std::chrono::steady_clock::time_point when{};
};

LastError last_error();

}  // namespace lockstep
