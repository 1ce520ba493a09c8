// What a rank's monitor does from a failure on: it tells the others, gathers their answers, and says who reports.

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/log.h"
#include "lockstep/distributed/failure/peer_monitor.h"
#include "lockstep/distributed/failure/process_end.h"
#include "lockstep/distributed/failure/tell_launcher.h"

namespace lockstep::distributed {
namespace {

constexpr Milliseconds kPause{10};  // between two looks for answers

}  // namespace

std::int64_t PeerMonitor::now_ms() const {
  return std::chrono::duration_cast<Milliseconds>(std::chrono::steady_clock::now() - began_).count();
}

void PeerMonitor::set_exception(std::string_view what, std::uint64_t next) {
  if (parent_) parent_->set_exception(what, parent_->begun());
  const std::lock_guard lock(mutex_);
  if (state_.exception.empty() || what != kUnknownException) state_.exception = what;
  exception_until_ = next;
  ++changes_;
}

std::string PeerMonitor::exception() const {
  {
    const std::lock_guard lock(mutex_);
    if (!state_.exception.empty() && state_.exception != kUnknownException) return state_.exception;
  }
  return parent_ ? parent_->exception() : "";
}

void PeerMonitor::forget_exception() {
  if (parent_) parent_->forget_exception();
  const std::lock_guard lock(mutex_);
  state_.exception.clear();
}

std::optional<OperationFailure> PeerMonitor::reported_failure() {
  try {
    if (store_error().empty()) return read_failure();
  } catch (const std::exception& error) {
    give_up_store(error.what());
  }
  return {};
}

void PeerMonitor::announce(const OperationFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    announced_ = true;
    state_.trouble = state_.trouble.empty() ? failure.cause : fmt::format("{}; {}", failure.cause, state_.trouble);
    if (failure.missed != Way::none) {
      state_.lost_peer = failure.peer;
      state_.missed = failure.missed;
    }
    ++changes_;
  }
  const std::string me = std::to_string(rank_);
  try {
    store_->set(rank_key("answer", rank_), own_state().encode(), request_timeout_);
    if (store_->compare_set("failed", "", me, request_timeout_) != me) return;
    for (int r = 0; r < world_size_; ++r) store_->set(rank_key("wake", r), me, request_timeout_);
  } catch (const std::exception& error) {
    give_up_store(error.what());
    logging::debug("cannot tell the others of a failure: {}", error.what());
  }
}

void PeerMonitor::add_own_word(const OperationFailure& failure) {
  {
    const std::lock_guard lock(mutex_);
    if (failure.peer < 0 || state_.lost_peer >= 0 || failure.missed == Way::none) return;
    state_.lost_peer = failure.peer;
    state_.missed = failure.missed;
    state_.trouble += (state_.trouble.empty() ? "" : "; ") + failure.cause;
    ++changes_;
    if (!announced_) return;  // announce() tells it
  }
  try {
    if (store_error().empty()) store_->set(rank_key("answer", rank_), own_state().encode(), request_timeout_);
  } catch (const std::exception& error) {
    give_up_store(error.what());
  }
}

/// True while all live, and one of those that wait has not said for whom.
bool PeerMonitor::is_word_missing(const std::vector<Observation>& seen) {
  return std::ranges::all_of(seen, [](const Observation& other) { return other.answered && !other.state->left; }) &&
         std::ranges::any_of(
             seen, [](const Observation& other) { return other.state->running && other.state->lost_peer < 0; });
}

Diagnosis PeerMonitor::diagnose(const OperationFailure& failure) {
  const Deadline deadline = deadline_in(std::clamp(timeout_ / 4, Milliseconds(200), Milliseconds(1'500)));
  std::vector<Observation> seen(static_cast<std::size_t>(world_size_));
  std::string store_error = this->store_error();
  for (int r = 0; r < world_size_; ++r) {
    Observation& other = seen[static_cast<std::size_t>(r)];
    if (r == rank_) {
      other = {own_state(), true, ProcessFate::running};
      continue;
    }
    const auto take_answer = [&] {
      auto answer = read("answer", r);
      if (!answer) return false;
      other = {std::move(answer), true, ProcessFate::running};
      return true;
    };
    try {
      while (store_error.empty() && !take_answer()) {
        if (auto state = read("state", r)) other.state = std::move(state);
        if (other.state && other.state->left) {
          take_answer();  // if it has failed too, it answered before it left
          break;
        }
        other.fate = other.state ? fate_of(other.state->process) : ProcessFate::unknown;
        const bool hopeless = other.fate == ProcessFate::gone || other.fate == ProcessFate::stopped;
        if (hopeless || has_passed(deadline)) {
          take_answer();  // it may have been its last deed
          break;
        }
        std::this_thread::sleep_for(kPause);
      }
    } catch (const std::exception& error) {
      store_error = error.what();
      give_up_store(store_error);
    }
    const std::lock_guard lock(mutex_);
    if (!other.state) other.state = last_read_[static_cast<std::size_t>(r)];
  }
  // Whom a rank has waited for comes out when its operation ends, which may be after its answer.
  const Deadline words_by = deadline_in(std::clamp(timeout_ / 20, Milliseconds(20), Milliseconds(200)));
  while (store_error.empty() && is_word_missing(seen) && !has_passed(words_by)) {
    std::this_thread::sleep_for(kPause);
    try {
      for (int r = 0; r < world_size_; ++r)
        if (auto answer = r == rank_ ? own_state() : read("answer", r))
          seen[static_cast<std::size_t>(r)].state = std::move(answer);
    } catch (const std::exception& error) {
      store_error = error.what();
      give_up_store(store_error);
    }
  }
  if (!store_error.empty())
    for (Observation& other : seen)
      if (!other.answered && other.state) other.fate = fate_of(other.state->process);
  return distributed::diagnose(failure, seen, store_error, now_ms(), ranks_);
}

bool PeerMonitor::is_reporter(const OperationFailure& failure, const Diagnosis& diagnosis) {
  if (diagnosis.alive.empty() || diagnosis.alive.front() != rank_) return false;
  const std::string me = std::to_string(rank_);
  try {
    if (const std::string error = store_error(); !error.empty()) throw StoreError(error);
    return store_->compare_set("reporter", "", me, request_timeout_) == me;
  } catch (const std::exception&) {
    // Without the store nobody can be asked: rank 0 reports, or rank 1 if it is rank 0 that is missing.
    return rank_ == 0 || (rank_ == 1 && failure.peer == 0);
  }
}

int PeerMonitor::reporter(const Diagnosis& diagnosis) const {
  return diagnosis.alive.empty() || !store_error().empty() ? -1 : diagnosis.alive.front();
}

void PeerMonitor::leave_now(std::string_view reason, bool is_failure) {
  set_ended_by(reason);
  bool dead = false;
  {
    const std::lock_guard lock(mutex_);
    dead = announced_;
    state_.left = true;
    ++changes_;
  }
  if (dead) return;  // the group's end has been told before
  if (is_failure) tell_launcher(reason, /*own=*/true);
  try {
    publish_if_changed(std::min(request_timeout_, Milliseconds(500)));
    if (is_failure) announce({{}, std::string(reason), -1});
  } catch (const std::exception& error) {
    logging::debug("cannot tell the others that this process ends: {}", error.what());
  }
}

}  // namespace lockstep::distributed
