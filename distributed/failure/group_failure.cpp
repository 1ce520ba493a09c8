#include "lockstep/distributed/failure/group_failure.h"

#include <string_view>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/failure/flight_dump.h"
#include "lockstep/distributed/failure/tell_launcher.h"

namespace lockstep::distributed {
namespace {

constexpr std::string_view kFailed = " failed: ";

/// What was found out, and what this rank knew, where that is something else.
std::string cause_text(const std::string& headline, const std::string& known) {
  if (headline.empty() || headline == known) return known;
  return fmt::format("{} ({})", headline, known);
}

}  // namespace

GroupFailure::GroupFailure(const FlightRecorder& recorder, Place place, Milliseconds timeout, StorePtr store,
                           std::function<void()> abort_backend)
    : recorder_(recorder), place_(std::move(place)), timeout_(timeout), abort_backend_(std::move(abort_backend)) {
  if (store)
    monitor_ = std::make_unique<PeerMonitor>(
        std::move(store), place_.rank, place_.world_size, timeout,
        [this](const OperationFailure& failure) { fail(failure); }, place_.ranks,
        place_.parent ? place_.parent->monitor() : nullptr);
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
  {
    const std::lock_guard lock(mutex_);
    if (failing_) return true;
  }
  return place_.parent && place_.parent->failing();
}

std::exception_ptr GroupFailure::error() const {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return failure_;
  }
  return place_.parent ? place_.parent->error() : nullptr;
}

void GroupFailure::end_by_own_doing(const std::string& reason) {
  if (failing()) return;
  tell_launcher(reason, /*own=*/true);
  if (monitor_) monitor_->set_ended_by(reason);
  if (place_.parent) place_.parent->end_by_own_doing(reason);
  fail({{}, reason, -1});
}

std::exception_ptr GroupFailure::fail(const OperationFailure& failure) {
  {
    std::unique_lock lock(mutex_);
    if (failing_) {
      if (monitor_) {
        lock.unlock();
        monitor_->add_own_word(failure);
        lock.lock();
      }
      // Another thread is finding out why; it needs less than the deadline.
      changed_.wait_for(lock, 2 * timeout_, [this] { return failure_ != nullptr; });
      return failure_ ? failure_ : std::make_exception_ptr(ProcessGroupError(failure.cause));
    }
    failing_ = true;
  }
  tell_launcher(failure.cause, /*own=*/false);  // unless it has been told that it is
  // If it is the parent that fails, its announcement reaches them all.
  if (monitor_ && !(place_.parent && place_.parent->failing())) monitor_->announce(failure);
  if (!place_.parent) abort_backend_();
  const ProcessGroupError error = place_.parent ? tell_parent(failure) : tell(failure);
  const std::lock_guard lock(mutex_);
  FlightDumps::write_after_failure(recorder_, error.what());
  failure_ = std::make_exception_ptr(error);
  changed_.notify_all();
  return failure_;
}

ProcessGroupError GroupFailure::tell(const OperationFailure& failure) {
  const std::string what = failure.operation.empty() ? "the process group" : failure.operation;
  const std::string text = fmt::format("[Rank {}] {}{}", job_rank(place_.rank), what, kFailed);
  if (!monitor_) return ProcessGroupError(text + failure.cause);
  const Diagnosis diagnosis = monitor_->diagnose(failure);
  const bool reports = monitor_->is_reporter(failure, diagnosis);
  if (reports) logging::error("{}", diagnosis.report);
  if (diagnosis.headline.empty()) return ProcessGroupError(text + monitor_->standstill() + failure.cause);
  std::string brief;
  if (const int reporter = reports ? place_.rank : monitor_->reporter(diagnosis);
      reporter >= 0 && !diagnosis.culprits.empty() && logging::enabled(logging::Level::error))
    brief = fmt::format("[Rank {}] {} failed because of {}; rank {}'s report says more", job_rank(place_.rank),
                        what.substr(0, what.find(" (")), diagnosis.culprits, job_rank(reporter));
  return ProcessGroupError(text + monitor_->standstill() + cause_text(diagnosis.headline, failure.cause), brief);
}

// What this group's ranks know goes into the parent's report, which is the only one.
ProcessGroupError GroupFailure::tell_parent(const OperationFailure& failure) {
  const std::string where = std::string(kInPart) + ranks_text(place_.ranks);
  // What a part of this part has told names its ranks, and knows the cause.
  const bool is_told = failure.cause.starts_with(kInPart);
  const std::string operation = failure.operation.empty() ? "an operation" : failure.operation;
  const std::string what = is_told ? operation : fmt::format("{} {}", operation, where);
  GroupFailure& parent = *place_.parent;
  parent.look_for_reports();
  std::string cause;
  if (is_told) {
    cause = failure.cause;
    parent.fail({what, cause, -1});
  } else if (!parent.failing()) {
    const Diagnosis diagnosis = monitor_ ? monitor_->diagnose(failure) : Diagnosis{};
    // The parent keeps the word that comes first: it must be the cause, not that somebody has told of one.
    const std::string& known = diagnosis.reported.empty() ? failure.cause : diagnosis.reported;
    cause = cause_text(diagnosis.headline, known);
    parent.fail({what, fmt::format("{}: {}", where, cause), -1});
  }
  try {
    std::rethrow_exception(parent.fail({}));
  } catch (const ProcessGroupError& error) {
    if (cause.empty()) {
      cause = error.what();
      if (const std::size_t at = cause.find(kFailed); at != std::string::npos) cause.erase(0, at + kFailed.size());
    } else if (monitor_) {
      const std::string standstill = monitor_->standstill();
      cause = (standstill.empty() && parent.monitor() ? parent.monitor()->standstill() : standstill) + cause;
    }
    return ProcessGroupError(fmt::format("[Rank {}] {}{}{}", job_rank(place_.rank), what, kFailed, cause),
                             error.brief());
  }
}

// A rank that leaves because of the job's failure is soon missed in the parts of it, perhaps before the news has come.
void GroupFailure::look_for_reports() {
  if (place_.parent) place_.parent->look_for_reports();
  if (failing() || !monitor_) return;
  if (const auto reported = monitor_->reported_failure()) fail(*reported);
}

int GroupFailure::job_rank(int rank) const {
  return place_.ranks.empty() ? rank : place_.ranks[static_cast<std::size_t>(rank)];
}

}  // namespace lockstep::distributed
