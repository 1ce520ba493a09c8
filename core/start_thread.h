#pragma once

// For .cpp files only.

#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {

/// A new thread that runs `body`. Throws Error, naming `what` it was for, if the system has none to give.
template <typename Body>
std::thread start_thread(const char* what, Body&& body) {
  try {
    return std::thread(std::forward<Body>(body));
  } catch (const std::system_error& error) {
    detail::throw_error(fmt::format(
        "cannot start a thread for {}: {}; ask for fewer threads, or raise the limits of the user or the container",
        what, error.code().message()));
  }
}

}  // namespace lockstep
