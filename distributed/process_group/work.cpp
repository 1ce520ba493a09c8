#include "lockstep/distributed/process_group/work.h"

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"

namespace lockstep::distributed {

Work::Work(std::string description, Milliseconds default_wait)
    : description_(std::move(description)), default_wait_(default_wait) {}

void Work::wait(Milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const Deadline deadline = deadline_in(timeout);
  if (!ended_.wait_until(lock, deadline, [this] { return completed_; }))
    throw TimeoutError(fmt::format("[Work] {} has not ended within {} ms", description_, timeout.count()));
  if (error_) std::rethrow_exception(error_);
}

bool Work::is_completed() {
  const std::lock_guard lock(mutex_);
  return completed_;
}

bool Work::is_success() {
  const std::lock_guard lock(mutex_);
  return completed_ && !error_;
}

std::exception_ptr Work::exception() {
  const std::lock_guard lock(mutex_);
  return error_;
}

void Work::complete(std::exception_ptr error) {
  {
    const std::lock_guard lock(mutex_);
    if (completed_) return;
    completed_ = true;
    error_ = std::move(error);
  }
  ended_.notify_all();
}

}  // namespace lockstep::distributed
