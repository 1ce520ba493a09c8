#include "lockstep/core/environment.h"

#include <cstdlib>

extern char** environ;  // POSIX leaves its declaration to the program

namespace lockstep {

Environment current_environment() {
  Environment result;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    // From the second character: a name is never empty.
    if (const std::size_t equals = text.find('=', 1); equals != std::string_view::npos)
      result.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return result;
}

std::optional<std::string> environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  if (!value || !*value) return {};
  return value;
}

bool environment_flag(const char* name) {
  return environment_variable(name).value_or("0") != "0";
}

}  // namespace lockstep
