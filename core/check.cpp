#include "lockstep/core/check.h"

#include "lockstep/core/last_error.h"

namespace lockstep {
namespace {

thread_local LastError last_error_here;
thread_local constinit const void* thrown_last = nullptr;

/// The exception object itself, which lives until the last handler of it has ended.
class Thrown final : public Error {
 public:
  explicit Thrown(const std::string& message) : Error(message) { thrown_last = this; }
  Thrown(const Thrown&) = default;
  ~Thrown() override {
    if (thrown_last == this) thrown_last = nullptr;
  }
};

}  // namespace

LastError last_error() {
  return thrown_last ? last_error_here : LastError{};
}

}  // namespace lockstep

namespace lockstep::detail {

void throw_error(std::string message) {
  last_error_here = {message, std::chrono::steady_clock::now()};
  throw Thrown(message);
}

void throw_internal(const char* file, int line, const char* condition, std::string message) {
  throw InternalError(fmt::format("internal error at {}:{}: '{}' does not hold: {} (please report this)", file, line,
                                  condition, message));
}

}  // namespace lockstep::detail
