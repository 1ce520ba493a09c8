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

/// True if it is set to anything but 0 or nothing.
bool environment_flag(const char* name);

}  // namespace lockstep
