#include "lockstep/core/check.h"

#include "lockstep/core/last_error.h"

namespace lockstep {
namespace {

thread_local LastError last_error_here;

}  // namespace

LastError last_error() {
  return last_error_here;
}

}  // namespace lockstep

namespace lockstep::detail {

void throw_error(std::string message) {
  last_error_here = {message, std::chrono::steady_clock::now()};
  throw Error(message);
}

void throw_internal(const char* file, int line, const char* condition, std::string message) {
  throw InternalError(fmt::format("internal error at {}:{}: '{}' does not hold: {} (please report this)", file, line,
                                  condition, message));
}

}  // namespace lockstep::detail
