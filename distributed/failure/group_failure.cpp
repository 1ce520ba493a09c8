#include "lockstep/distributed/failure/group_failure.h"

#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/failure/flight_dump.h"
#include "lockstep/distributed/failure/tell_launcher.h"

namespace lockstep::distributed {

GroupFailure::GroupFailure(const FlightRecorder& recorder, Milliseconds timeout, StorePtr store,
                           std::function<void()> abort_backend)
    : recorder_(recorder), rank_(recorder.rank()), timeout_(timeout), abort_backend_(std::move(abort_backend)) {
  if (store)
    monitor_ = std::make_unique<PeerMonitor>(std::move(store), rank_, recorder.world_size(), timeout,
                                             [this](const OperationFailure& failure) { fail(failure); });
}

GroupFailure::~GroupFailure() {
  stop();  // the monitor's threads use all that is declared behind it
}

void GroupFailure::stop() {
  // The monitor itself stays: its threads ask monitor_ until they have ended.
  if (monitor_) monitor_->stop();
}

void GroupFailure::start() {
  if (monitor_) monitor_->start();
}

bool GroupFailure::failing() const {
  const std::lock_guard lock(mutex_);
  return failing_;
}

std::exception_ptr GroupFailure::error() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void GroupFailure::end_by_own_doing(const std::string& reason) {
  if (failing()) return;
  tell_launcher(reason, /*own=*/true);
  if (monitor_) monitor_->set_ended_by(reason);
  fail({{}, reason, -1});
}

std::exception_ptr GroupFailure::fail(const OperationFailure& failure) {
  {
    std::unique_lock lock(mutex_);
    if (failing_) {
      // Another thread is finding out why; it needs less than the deadline.
      changed_.wait_for(lock, 2 * timeout_, [this] { return failure_ != nullptr; });
      return failure_ ? failure_ : std::make_exception_ptr(ProcessGroupError(failure.cause));
    }
    failing_ = true;
  }
  tell_launcher(failure.cause, /*own=*/false);  // unless it has been told that it is
  if (monitor_) monitor_->announce(failure);
  abort_backend_();
  const std::string text = tell(failure);
  const std::lock_guard lock(mutex_);
  FlightDumps::write_after_failure(recorder_, text);
  failure_ = std::make_exception_ptr(ProcessGroupError(text));
  changed_.notify_all();
  return failure_;
}

std::string GroupFailure::tell(const OperationFailure& failure) {
  const std::string what = failure.operation.empty() ? "the process group" : failure.operation;
  std::string text = fmt::format("[Rank {}] {} failed: ", rank_, what);
  if (!monitor_) return text + failure.cause;
  const Diagnosis diagnosis = monitor_->diagnose(failure);
  if (monitor_->is_reporter(failure, diagnosis)) logging::error("{}", diagnosis.report);
  if (diagnosis.headline.empty()) return text + failure.cause;
  return text + fmt::format("{} ({})", diagnosis.headline, failure.cause);
}

}  // namespace lockstep::distributed
