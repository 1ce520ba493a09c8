#pragma once

// Diagnostics on stderr through spdlog. For .cpp files only.
// LOCKSTEP_LOG_LEVEL=trace|debug|info|warn|error|off sets the level (default: warn).

#include <fmt/core.h>

#include <string_view>
#include <utility>

namespace lockstep::logging {

enum class Level { trace, debug, info, warn, error };

/// True if messages of this level are printed.
bool enabled(Level level);
/// Prints one line to stderr. Thread-safe.
void write(Level level, std::string_view message);
/// Text put before each message, such as "[Rank 2] ". Call once, before threads start.
void set_prefix(std::string_view prefix);

template <typename... Args>
void message(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::debug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::info, format, std::forward<Args>(args)...);
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::warn, format, std::forward<Args>(args)...);
}
template <typename... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  message(Level::error, format, std::forward<Args>(args)...);
}

}  // namespace lockstep::logging
