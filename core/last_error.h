#pragma once

#include <chrono>
#include <string>

namespace lockstep {

/// The last failed check of this thread. Destructors that run while the stack unwinds cannot see the exception; this is
/// how they can tell others of it.
struct LastError {
  std::string message;
  std::chrono::steady_clock::time_point when{};
};

LastError last_error();

}  // namespace lockstep
