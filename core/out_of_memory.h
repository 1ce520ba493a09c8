#pragma once

// For .cpp files only.

#include <new>
#include <string_view>
#include <utility>

#include "lockstep/core/check.h"

namespace lockstep {

/// What `body` returns. Where memory is refused to it, an Error says what it was `doing`: "reading 'images.gz'".
template <typename Body>
decltype(auto) with_memory_for(std::string_view doing, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const std::bad_alloc&) {
    detail::throw_error(fmt::format(
        "out of memory while {}; free some, or raise the limit of the process (ulimit -v) or the container", doing));
  }
}

}  // namespace lockstep
