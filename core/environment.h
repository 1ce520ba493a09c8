#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// Environment variables by name.
using Environment = std::map<std::string, std::string, std::less<>>;

/// All of this process's.
Environment current_environment();

/// One of this process's; empty if it is unset or set to nothing.
std::optional<std::string> environment_variable(const char* name);

/// True if it is set to anything but 0, or it is not set, or to nothing, and `unset` is true. A value that is neither 0
/// nor 1 is told of in a warning.
bool environment_flag(const char* name, bool unset = false);

}  // namespace lockstep
