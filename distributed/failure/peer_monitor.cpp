#include "lockstep/distributed/failure/peer_monitor.h"

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/core/log.h"
#include "lockstep/core/parse_number.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/distributed/failure/process_end.h"

namespace lockstep::distributed {
namespace {

using std::chrono::duration_cast;

// Up to this size every rank learns early which process each other rank is.
constexpr int kSmallWorld = 64;
// At the start the others' identities are looked for more often, as a rank may fail in its first moments.
constexpr Milliseconds kEarlyInterval{20};
constexpr int kEarlyLooks = 50;
// A thread that wakes so much too late was not kept from its core by other work alone.
constexpr Milliseconds kStandstill{1'000};

Milliseconds steady_now() {
  return duration_cast<Milliseconds>(std::chrono::steady_clock::now().time_since_epoch());
}

}  // namespace

std::string PeerMonitor::rank_key(const char* prefix, int rank) {
  return fmt::format("{}/{}", prefix, rank);
}

PeerMonitor::PeerMonitor(StorePtr store, int rank, int world_size, Milliseconds timeout,
                         std::function<void(OperationFailure)> on_failure, std::vector<int> ranks, PeerMonitor* parent)
    : store_(std::move(store)),
      rank_(rank),
      world_size_(world_size),
      ranks_(std::move(ranks)),
      parent_(parent),
      timeout_(timeout),
      interval_(std::clamp(timeout / 10, Milliseconds(20), Milliseconds(1'000))),
      request_timeout_(std::clamp(timeout / 4, Milliseconds(100), Milliseconds(5'000))),
      on_failure_(std::move(on_failure)),
      last_read_(static_cast<std::size_t>(world_size)),
      identities_read_(world_size > kSmallWorld) {
  state_.process = own_identity();
}

void PeerMonitor::start() {
  // Before the first operation: who has met this rank in one can find out what has become of its process.
  try {
    publish_if_changed(request_timeout_);
  } catch (const std::exception& error) {
    logging::debug("cannot publish this rank's place: {}", error.what());  // the publisher tries again, and warns
  }
  publisher_ = start_thread("the watch over the other ranks", [this] { publish_and_look(); });
  watcher_ = start_thread("news of the other ranks", [this] { wait_to_be_woken(); });
  process_end::add(*this);
}

PeerMonitor::~PeerMonitor() {
  stop();
}

void PeerMonitor::stop() {
  if (parent_) parent_->part_ended(*this);
  process_end::remove(*this);
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    state_.left = true;
    ++changes_;
  }
  wake_.notify_all();
  if (publisher_.joinable()) publisher_.join();
  if (watcher_.joinable()) watcher_.join();
}

void PeerMonitor::part_started(const PeerMonitor& part, const OperationInfo& operation) {
  if (parent_) parent_->part_started(part, operation);  // a part of a part is one of the whole
  const std::lock_guard lock(mutex_);
  elsewhere_ = operation;
  elsewhere_of_ = &part;
  ++changes_;
}

void PeerMonitor::part_ended(const PeerMonitor& part) {
  if (parent_) parent_->part_ended(part);
  const std::lock_guard lock(mutex_);
  if (elsewhere_of_ != &part) return;
  elsewhere_of_ = nullptr;
  ++changes_;
}

void PeerMonitor::collective_started(const OperationInfo& operation, std::uint64_t fingerprint) {
  if (parent_) parent_->part_started(*this, operation);
  const std::lock_guard lock(mutex_);
  state_.called = operation.number + 1;
  state_.running = true;
  state_.fingerprint = fingerprint;
  state_.step = operation.step;
  calls_[operation.number % kCalls] = Call{operation, fingerprint};
  state_.since_ms = now_ms();
  started_at_ = steady_now();
  next_mismatch_look_ = started_at_ + std::clamp(timeout_ / 4, 2 * interval_, Milliseconds(2'000));
  ++changes_;
}

void PeerMonitor::collective_ended() {
  if (parent_) parent_->part_ended(*this);
  bool is_past = false;
  {
    const std::lock_guard lock(mutex_);
    state_.running = false;
    state_.since_ms = now_ms();
    ++changes_;
    is_past = !state_.exception.empty() && state_.called > exception_until_;
  }
  if (is_past) forget_exception();
}

void PeerMonitor::point_to_point_started(const OperationInfo& operation) {
  const std::lock_guard lock(mutex_);
  point_to_point_ = operation;
  has_point_to_point_ = true;
  state_.since_ms = now_ms();
  ++changes_;
}

void PeerMonitor::set_step(std::int64_t step) {
  const std::lock_guard lock(mutex_);
  state_.step = step;
  ++changes_;
}

std::uint64_t PeerMonitor::begun() const {
  const std::lock_guard lock(mutex_);
  return state_.called;
}

void PeerMonitor::set_ended_by(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  if (state_.ended_by.empty()) state_.ended_by = reason;
  ++changes_;
}

PeerState PeerMonitor::own_state() const {
  PeerState state;
  std::vector<Call> calls;
  bool all = false;
  OperationInfo point_to_point, elsewhere;
  std::string part;
  bool has_point_to_point = false;
  {
    const std::lock_guard lock(mutex_);
    state = state_;
    all = announced_ || state_.left;
    state.caught = !state.exception.empty() && ((state.left && !state.is_ended_by_exception()) ||
                                                (state.running && state.called > exception_until_));
    const std::uint64_t count = std::min<std::uint64_t>(state_.called, all ? kCalls : 1);
    for (std::uint64_t number = state_.called - count; number < state_.called; ++number)
      if (const Call* call = call_of(number)) calls.push_back(*call);
    point_to_point = point_to_point_;
    has_point_to_point = has_point_to_point_;
    elsewhere = elsewhere_;
    if (elsewhere_of_) part = ranks_text(elsewhere_of_->ranks_);
  }
  if (!calls.empty()) state.collective = describe(calls.back().operation);
  for (const Call& call : calls)
    if (all) state.calls.push_back({call.operation.number, call.fingerprint, describe(call.operation)});
  if (has_point_to_point) state.point_to_point = describe(point_to_point);
  if (!part.empty()) state.elsewhere = fmt::format("{} in the group of {}", describe(elsewhere), part);
  return state;
}

bool PeerMonitor::stopping() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

/// False from a failure on, of which there is no more to learn in this way.
bool PeerMonitor::watching() const {
  const std::lock_guard lock(mutex_);
  return !stop_ && !announced_;
}

Milliseconds PeerMonitor::pause() const {
  return !identities_read_ && early_looks_ < kEarlyLooks ? std::min(kEarlyInterval, interval_) : interval_;
}

std::string PeerMonitor::store_error() const {
  const std::lock_guard lock(mutex_);
  return store_error_;
}

void PeerMonitor::give_up_store(std::string_view error) {
  const std::lock_guard lock(mutex_);
  store_error_ = error;
}

void PeerMonitor::publish_and_look() {
  bool watching = true;
  for (;;) {
    const bool stop = stopping();
    if (stop && !store_error().empty()) return;
    try {
      // A last word, if the store is still there; and the watcher sleeps in the store.
      publish_if_changed(stop ? std::min(request_timeout_, Milliseconds(500)) : request_timeout_);
      if (stop) {
        store_->set(rank_key("wake", rank_), "leaving", std::min(request_timeout_, Milliseconds(500)));
        return;
      }
      read_identities();
      refresh_one();
      if (watching && (look_for_failure() || look_for_mismatch())) watching = false;
      const std::lock_guard lock(mutex_);
      store_lost_ = false;
    } catch (const std::exception& error) {
      if (stop) return;
      // A store that is gone stops no training; a rank that is gone does, when an operation misses it.
      const std::lock_guard lock(mutex_);
      if (!store_lost_ && !announced_ && !stop_)
        logging::warn(
            "the job's store does not answer ({}); the training goes on, but if a rank fails now, the others will know "
            "less about it",
            error.what());
      store_lost_ = true;
    }
    std::unique_lock lock(mutex_);
    const Milliseconds planned = pause();
    sleeps_ = {steady_now(), planned};
    wake_.wait_for(lock, planned, [this] { return stop_; });
    note_standstill();
    sleeps_.reset();
  }
}

// The caller holds the mutex.
void PeerMonitor::note_standstill() {
  if (!sleeps_) return;
  const auto& [since, planned] = *sleeps_;
  if (const Milliseconds now = steady_now(); now - since - planned > kStandstill) stood_still_ = {now - since, now};
}

std::string PeerMonitor::standstill() {
  const std::lock_guard lock(mutex_);
  note_standstill();  // whoever asks may have woken before the publisher
  const auto& [length, end] = stood_still_;
  if (length.count() == 0 || steady_now() - end > 2 * timeout_) return {};
  return fmt::format(
      "this process itself stood still for {:.1f} s (stopped by a signal or a debugger, or its machine was), while the "
      "others waited for it; ",
      static_cast<double>(length.count()) / 1000.0);
}

Milliseconds PeerMonitor::since_last_collective() const {
  const std::lock_guard lock(mutex_);
  if (state_.called == 0 || state_.running) return Milliseconds::max();
  return Milliseconds(now_ms() - state_.since_ms);
}

void PeerMonitor::wait_to_be_woken() {
  const Milliseconds slice = std::clamp(timeout_ / 4, Milliseconds(50), Milliseconds(5'000));
  while (watching()) {
    try {
      store_->wait({rank_key("wake", rank_)}, slice);
      if (watching()) look_for_failure();
      return;
    } catch (const TimeoutError&) {
    } catch (const std::exception&) {
      std::unique_lock lock(mutex_);
      wake_.wait_for(lock, interval_, [this] { return stop_; });
    }
  }
}

void PeerMonitor::publish_if_changed(Milliseconds timeout) {
  std::uint64_t changes = 0;
  {
    const std::lock_guard lock(mutex_);
    if (changes_ == published_) return;
    changes = changes_;
  }
  store_->set(rank_key("state", rank_), own_state().encode(), timeout);
  const std::lock_guard lock(mutex_);
  published_ = changes;
}

// So that the fate of a process can be told even if the store goes with it.
void PeerMonitor::read_identities() {
  if (identities_read_) return;
  ++early_looks_;
  bool all = true;
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_ || last_read_[static_cast<std::size_t>(r)]) continue;
    auto state = read("state", r);
    all = all && state;
    const std::lock_guard lock(mutex_);
    last_read_[static_cast<std::size_t>(r)] = std::move(state);
  }
  identities_read_ = all;  // or never, if a rank has gone before it began
}

// One rank's place an interval, so that something is known of all if the store goes.
void PeerMonitor::refresh_one() {
  if (!identities_read_) return;
  next_refresh_ = (next_refresh_ + 1) % world_size_;
  if (next_refresh_ == rank_) return;
  if (auto state = read("state", next_refresh_)) {
    const std::lock_guard lock(mutex_);
    last_read_[static_cast<std::size_t>(next_refresh_)] = std::move(state);
  }
}

void PeerMonitor::tell(const OperationFailure& failure) {
  if (!told_.exchange(true)) on_failure_(failure);
}

/// The rank that "failed" names; this one if the store holds nonsense.
int PeerMonitor::rank_in(const std::string& text) const {
  const auto rank = parse_number<int>(text);
  return rank && *rank >= 0 && *rank < world_size_ ? *rank : rank_;
}

bool PeerMonitor::look_for_failure() {
  {
    const std::lock_guard lock(mutex_);
    if (announced_) return true;
  }
  const std::optional<OperationFailure> reported = read_failure();
  if (reported) tell(*reported);
  return reported.has_value();
}

std::optional<OperationFailure> PeerMonitor::read_failure() {
  if (!store_->check({"failed"}, request_timeout_)) return {};
  const int reporter = rank_in(store_->get("failed", request_timeout_));
  const PeerState own = own_state();
  return OperationFailure{own.running ? own.collective : std::string(),
                          fmt::format("rank {} reported a failure", job_rank(reporter)), -1, reporter};
}

bool PeerMonitor::look_for_mismatch() {
  {
    const std::lock_guard lock(mutex_);
    const Milliseconds now = steady_now();
    if (!state_.running || now < next_mismatch_look_) return false;
    // Ever more rarely: a long collective is no crime, and W ranks that each read W states are many requests.
    next_mismatch_look_ = now + std::max(interval_, (now - started_at_) / 2);
  }
  const PeerState own = own_state();
  if (!own.running) return false;
  std::string cause;
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    const auto state = read("state", r);
    if (!state) continue;
    if (state->left && state->called < own.called && cause.empty())
      cause = fmt::format("rank {} has left the group without calling it", job_rank(r));
    const std::lock_guard lock(mutex_);
    if (std::string found = difference(r, *state); !found.empty()) cause = std::move(found);
    last_read_[static_cast<std::size_t>(r)] = state;
  }
  if (cause.empty()) return false;
  tell({own.collective, cause, -1});
  return true;
}

/// Empty unless the other rank's last collective is not what this one has called, or calls, under the same number.
std::string PeerMonitor::difference(int rank, const PeerState& other) const {
  const Call* const own = other.called > 0 ? call_of(other.called - 1) : nullptr;
  if (!own || own->fingerprint == other.fingerprint) return {};
  const std::string called = describe(own->operation);
  if (called == other.collective)
    return fmt::format("rank {} has come to {} by other calls than this one", job_rank(rank), called);
  if (other.called == state_.called) return fmt::format("rank {} called {} instead", job_rank(rank), other.collective);
  return fmt::format("rank {} called {} where this one called {}", job_rank(rank), other.collective, called);
}

/// Null if it has not been called yet, or too long ago.
const PeerMonitor::Call* PeerMonitor::call_of(std::uint64_t number) const {
  if (number >= state_.called || state_.called - number > kCalls) return nullptr;
  const std::optional<Call>& call = calls_[number % kCalls];
  return call && call->operation.number == number ? &*call : nullptr;
}

std::optional<PeerState> PeerMonitor::read(const char* prefix, int rank) {
  const std::string key = rank_key(prefix, rank);
  if (!store_->check({key}, request_timeout_)) return {};
  return PeerState::decode(store_->get(key, request_timeout_));
}

}  // namespace lockstep::distributed
