#include "lockstep/distributed/failure/process_end.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "lockstep/core/last_error.h"
#include "lockstep/distributed/failure/peer_monitor.h"

namespace lockstep::distributed {
namespace {

constexpr std::chrono::seconds kAMoment{2};

struct Registry {
  std::mutex mutex;
  std::vector<PeerMonitor*> monitors;
  std::terminate_handler previous = nullptr;
  pid_t owner = -1;  // a forked child has its parent's list, but those are not its ranks
};

Registry& registry() {
  // Never destroyed: used while the process ends.
  static auto* const instance = new Registry;
  return *instance;
}

void tell_all(const std::string& reason, bool is_failure) {
  Registry& here = registry();
  if (here.owner != ::getpid()) return;
  const std::lock_guard lock(here.mutex);
  for (PeerMonitor* monitor : here.monitors) monitor->leave_now(reason, is_failure);
}

std::string one_line(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

std::string last_message() {
  const LastError last = last_error();
  return std::chrono::steady_clock::now() - last.when > kAMoment ? "" : one_line(last.message);
}

[[noreturn]] void on_terminate() {
  std::string reason = "called std::terminate()";
  if (const std::exception_ptr error = std::current_exception()) {
    reason = "threw an exception that nobody caught";
    try {
      std::rethrow_exception(error);
    } catch (const std::exception& known) {
      reason = "threw: " + one_line(known.what());
    } catch (...) {
    }
  }
  tell_all(reason, /*is_failure=*/true);
  if (registry().previous) registry().previous();
  std::abort();
}

void on_exit() {
  tell_all("called exit()", /*is_failure=*/false);
}

}  // namespace

void process_end::add(PeerMonitor& monitor) {
  static std::once_flag once;
  std::call_once(once, [] {
    registry().previous = std::set_terminate(on_terminate);
    std::atexit(on_exit);
  });
  const std::lock_guard lock(registry().mutex);
  if (registry().owner != ::getpid()) {
    registry().owner = ::getpid();
    registry().monitors.clear();
  }
  registry().monitors.push_back(&monitor);
}

void process_end::remove(PeerMonitor& monitor) {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().monitors, &monitor);
}

std::string unwinding_message() {
  const std::string message = last_message();
  return message.empty() ? kUnknownException : message;
}

std::string reason_of_end(const std::string& exception) {
  return exception == kUnknownException ? "threw an exception; what it says stands in its own stderr"
                                        : "threw: " + exception;
}

std::string unwinding_reason(const std::string& remembered) {
  const std::string message = unwinding_message();
  return reason_of_end(message == kUnknownException && !remembered.empty() ? remembered : message);
}

}  // namespace lockstep::distributed
