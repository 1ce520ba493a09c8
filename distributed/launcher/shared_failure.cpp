#include "lockstep/distributed/launcher/shared_failure.h"

#include <charconv>

#include "lockstep/core/check.h"

namespace lockstep::launcher {

// "<node> <exit status> <kind> <text>"
std::string encode(const SharedFailure& failure) {
  return fmt::format("{} {} {} {}", failure.node, failure.exit_status, static_cast<int>(failure.kind), failure.text);
}

SharedFailure decode_failure(const std::string& text) {
  SharedFailure failure;
  const char* at = text.data();
  const char* const end = at + text.size();
  int kind = 0;
  for (int* number : {&failure.node, &failure.exit_status, &kind}) {
    const auto read = std::from_chars(at, end, *number);
    LOCKSTEP_CHECK(read.ec == std::errc() && read.ptr < end, "another launcher's report is not understood: '{}'", text);
    at = read.ptr + 1;
  }
  failure.kind = static_cast<SharedFailure::Kind>(kind);
  failure.text.assign(at, end);
  return failure;
}

}  // namespace lockstep::launcher
