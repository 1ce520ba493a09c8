#include "lockstep/train/command_line/main.h"

#include <algorithm>
#include <cstdio>

#include "lockstep/core/check.h"

namespace lockstep::command_line {

void throw_not_available(const std::string& flag, const std::string& where, const std::string& why) {
  throw UsageError(
      fmt::format("{} is not available {} this {}: {}", flag, where == "machine" ? "on" : "in", where, why));
}

int status_of_success(const char* program) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return 0;
  print_error(program, "what goes to stdout could not all be written; is the disk full, or stdout closed?");
  return 1;
}

void print_error(const char* program, const std::string& message) {
  std::string line = message;
  std::replace(line.begin(), line.end(), '\n', ' ');
  // One write, so that lines of several processes do not mix.
  line = fmt::format("{}: {}\n", program, line);
  std::fwrite(line.data(), 1, line.size(), stderr);
  std::fflush(stderr);
}

}  // namespace lockstep::command_line
