#pragma once

// The two check macros. For .cpp files only: public headers stay free of fmt.

#include <fmt/core.h>

#include <string>

#include "lockstep/core/error.h"

namespace lockstep::detail {

[[noreturn]] void throw_error(std::string message);
[[noreturn]] void throw_internal(const char* file, int line, const char* condition, std::string message);

}  // namespace lockstep::detail

/// User error: throws lockstep::Error with the formatted message when `condition` is false.
#define LOCKSTEP_CHECK(condition, ...)                             \
  do {                                                             \
    if (!(condition)) [[unlikely]]                                 \
      ::lockstep::detail::throw_error(::fmt::format(__VA_ARGS__)); \
  } while (false)

/// The library's own invariant: throws lockstep::InternalError with file and line when `condition` is false.
#define LOCKSTEP_ASSERT(condition, ...)                                                               \
  do {                                                                                                \
    if (!(condition)) [[unlikely]]                                                                    \
      ::lockstep::detail::throw_internal(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
  } while (false)
