#include "core/check.h"

namespace lockstep::detail {

void throw_error(std::string message) {
  throw Error(message);
}

void throw_internal(const char* file, int line, const char* condition, std::string message) {
  throw InternalError(fmt::format("internal error at {}:{}: '{}' does not hold: {} (please report this)", file, line,
                                  condition, message));
}

}  // namespace lockstep::detail
