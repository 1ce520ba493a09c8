#include "lockstep/core/environment.h"

#include <cstdlib>

#include "lockstep/core/log.h"

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

bool environment_flag(const char* name, bool unset) {
  const auto value = environment_variable(name);
  if (value && *value != "0" && *value != "1") logging::warn("{}='{}' counts as 1: expected 0 or 1", name, *value);
  return value ? *value != "0" : unset;
}

}  // namespace lockstep
