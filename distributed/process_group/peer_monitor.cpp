#include "distributed/process_group/peer_monitor.h"

#include <algorithm>

#include "core/check.h"
#include "core/log.h"
#include "distributed/store/wire.h"

namespace lockstep::distributed {
namespace {

using std::chrono::duration_cast;

Milliseconds steady_now() {
  return duration_cast<Milliseconds>(std::chrono::steady_clock::now().time_since_epoch());
}

std::int64_t wall_now_ms() {
  return duration_cast<Milliseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string rank_key(const char* prefix, int rank) {
  return fmt::format("{}/{}", prefix, rank);
}

std::string ranks_text(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : "; ") + item;
  return text;
}

}  // namespace

std::string PeerState::encode() const {
  return wire::Writer()
      .integer(called)
      .byte(running)
      .integer(fingerprint)
      .bytes(collective)
      .bytes(point_to_point)
      .byte(left)
      .bytes(trouble)
      .integer(static_cast<std::uint64_t>(since_ms))
      .message();
}

PeerState PeerState::decode(std::string_view text) {
  wire::Reader fields(text);
  fields.integer();  // the length that message() puts in front
  PeerState state;
  state.called = fields.integer();
  state.running = fields.byte() != 0;
  state.fingerprint = fields.integer();
  state.collective = fields.bytes();
  state.point_to_point = fields.bytes();
  state.left = fields.byte() != 0;
  state.trouble = fields.bytes();
  state.since_ms = static_cast<std::int64_t>(fields.integer());
  return state;
}

PeerMonitor::PeerMonitor(StorePtr store, int rank, int world_size, Milliseconds timeout,
                         std::function<void(Failure)> on_failure)
    : store_(std::move(store)),
      rank_(rank),
      world_size_(world_size),
      timeout_(timeout),
      interval_(std::clamp(timeout / 10, Milliseconds(20), Milliseconds(1'000))),
      request_timeout_(std::clamp(timeout / 4, Milliseconds(100), Milliseconds(5'000))),
      on_failure_(std::move(on_failure)),
      last_read_(static_cast<std::size_t>(world_size)) {
  state_.since_ms = wall_now_ms();
}

void PeerMonitor::start() {
  thread_ = std::thread([this] { run(); });
}

PeerMonitor::~PeerMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    state_.left = true;
    ++changes_;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PeerMonitor::collective_started(const Operation& operation, std::uint64_t fingerprint) {
  std::string description = describe(operation);
  const std::lock_guard lock(mutex_);
  state_.called = operation.number + 1;
  state_.running = true;
  state_.fingerprint = fingerprint;
  state_.collective = std::move(description);
  state_.since_ms = wall_now_ms();
  started_at_ = steady_now();
  next_mismatch_look_ = started_at_ + std::clamp(timeout_ / 4, 2 * interval_, Milliseconds(2'000));
  ++changes_;
}

void PeerMonitor::collective_ended() {
  const std::lock_guard lock(mutex_);
  state_.running = false;
  state_.since_ms = wall_now_ms();
  ++changes_;
}

void PeerMonitor::point_to_point_started(const Operation& operation) {
  std::string description = describe(operation);
  const std::lock_guard lock(mutex_);
  state_.point_to_point = std::move(description);
  state_.since_ms = wall_now_ms();
  ++changes_;
}

PeerState PeerMonitor::own_state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void PeerMonitor::run() {
  bool store_answers = true;
  bool watching = true;
  for (;;) {
    bool stop = false;
    {
      const std::lock_guard lock(mutex_);
      stop = stop_;
    }
    try {
      // A last word, if the store is still there.
      publish_if_changed(stop ? std::min(request_timeout_, Milliseconds(500)) : request_timeout_);
      if (stop) return;
      if (watching && (look_for_failure() || look_for_mismatch())) watching = false;
      store_answers = true;
    } catch (const std::exception& error) {
      // A store that is gone stops no training; a rank that is gone does, when an operation misses it.
      if (store_answers && !stop) logging::debug("[Rank {}] the peer monitor: {}", rank_, error.what());
      store_answers = false;
      if (stop) return;
    }
    std::unique_lock lock(mutex_);
    wake_.wait_for(lock, interval_, [this] { return stop_; });
  }
}

void PeerMonitor::publish_if_changed(Milliseconds timeout) {
  std::string text;
  std::uint64_t changes = 0;
  {
    const std::lock_guard lock(mutex_);
    if (changes_ == published_) return;
    changes = changes_;
    text = state_.encode();
  }
  store_->set(rank_key("state", rank_), text, timeout);
  const std::lock_guard lock(mutex_);
  published_ = changes;
}

bool PeerMonitor::look_for_failure() {
  {
    const std::lock_guard lock(mutex_);
    if (announced_) return true;
  }
  if (!store_->check({"failed"}, request_timeout_)) return false;
  const std::string who = store_->get("failed", request_timeout_);
  const PeerState own = own_state();
  Failure failure;
  if (own.running) {
    failure.operation = own.collective;
    failure.collective = own.called - 1;
    failure.fingerprint = own.fingerprint;
  }
  failure.cause = fmt::format("rank {} reported a failure", who);
  on_failure_(failure);
  return true;
}

bool PeerMonitor::look_for_mismatch() {
  const PeerState own = own_state();
  Failure failure{own.collective, own.called - 1, own.fingerprint, {}, -1};
  {
    const std::lock_guard lock(mutex_);
    const Milliseconds now = steady_now();
    if (!state_.running || now < next_mismatch_look_) return false;
    // Ever more rarely: a long collective is no crime, and W ranks that each read W states are many requests.
    next_mismatch_look_ = now + std::max(interval_, (now - started_at_) / 2);
  }
  std::vector<std::optional<PeerState>> states(static_cast<std::size_t>(world_size_));
  for (int r = 0; r < world_size_; ++r)
    if (r != rank_) states[static_cast<std::size_t>(r)] = read("state", r);
  {
    const std::lock_guard lock(mutex_);
    last_read_ = states;
  }
  failure.cause = explain(failure, states);
  if (failure.cause.empty()) return false;
  on_failure_(failure);
  return true;
}

void PeerMonitor::announce(const Failure& failure) {
  PeerState state = own_state();
  {
    const std::lock_guard lock(mutex_);
    announced_ = true;
    state_.trouble = failure.cause;
  }
  state.trouble = failure.cause;
  try {
    store_->set(rank_key("answer", rank_), state.encode(), request_timeout_);
    store_->compare_set("failed", "", std::to_string(rank_), request_timeout_);
  } catch (const std::exception& error) {
    logging::debug("[Rank {}] cannot tell the others of a failure: {}", rank_, error.what());
  }
}

std::string PeerMonitor::diagnose(const Failure& failure) {
  const Milliseconds patience = std::min({timeout_ / 2, 4 * interval_ + Milliseconds(200), Milliseconds(5'000)});
  const Milliseconds deadline = steady_now() + patience;
  std::vector<std::optional<PeerState>> states(static_cast<std::size_t>(world_size_));
  std::vector<bool> answered(static_cast<std::size_t>(world_size_));
  std::string lost_store;
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    auto& state = states[static_cast<std::size_t>(r)];
    try {
      while (lost_store.empty()) {
        state = read("answer", r);
        answered[static_cast<std::size_t>(r)] = state.has_value();
        if (!state) state = read("state", r);
        // Who has left will not answer.
        if (answered[static_cast<std::size_t>(r)] || (state && state->left) || steady_now() >= deadline) break;
        std::this_thread::sleep_for(std::min(interval_ / 4, Milliseconds(50)));
      }
    } catch (const std::exception& error) {
      lost_store = error.what();
    }
    const std::lock_guard lock(mutex_);
    if (!state) state = last_read_[static_cast<std::size_t>(r)];
  }

  const std::string explanation = explain(failure, states);
  const std::string& cause = explanation.empty() ? failure.cause : explanation;
  std::vector<std::string> missing, late, others;
  for (int r = 0; r < world_size_; ++r) {
    if (r == rank_) continue;
    const auto& state = states[static_cast<std::size_t>(r)];
    const bool has_answered = answered[static_cast<std::size_t>(r)];
    std::string item = fmt::format("rank {} ({})", r, where(r, state));
    if (state && !state->trouble.empty()) item += " that says: " + state->trouble;
    // Without the store nobody can answer: then only the rank that the connection was lost to is known to be missing.
    const bool gone = lost_store.empty() ? !has_answered : r == failure.peer;
    const bool behind = failure.collective && state && state->called <= *failure.collective;
    (gone ? missing : has_answered && behind ? late : others).push_back(std::move(item));
  }
  std::string text = fmt::format("[Rank {}] {} failed: {}", rank_,
                                 failure.operation.empty() ? "the process group" : failure.operation, cause);
  if (!missing.empty()) text += fmt::format(". Missing: {}", ranks_text(missing));
  if (!late.empty()) text += fmt::format(". Alive, but not there: {}", ranks_text(late));
  if (!others.empty()) text += fmt::format(". Other ranks: {}", ranks_text(others));
  if (!lost_store.empty())
    text += fmt::format(". The store does not answer either, so the process that holds it may be gone: {}", lost_store);
  return text;
}

std::optional<PeerState> PeerMonitor::read(const std::string& prefix, int rank) {
  const std::string key = rank_key(prefix.c_str(), rank);
  if (!store_->check({key}, request_timeout_)) return {};
  return PeerState::decode(store_->get(key, request_timeout_));
}

std::string PeerMonitor::where(int rank, const std::optional<PeerState>& state) const {
  if (!state) {
    const PeerState own = own_state();
    const std::uint64_t finished = own.running ? own.called - 1 : own.called;
    return finished == 0 ? fmt::format("rank {} was never seen", rank)
                         : fmt::format("last seen when collective #{} ended", finished - 1);
  }
  const double seconds = std::max<double>(0, static_cast<double>(wall_now_ms() - state->since_ms) / 1000.0);
  std::string text = state->left ? "left the group" : "last seen";
  text += fmt::format(" {:.1f} s ago ", seconds);
  text += state->collective.empty() ? "before its first collective"
                                    : fmt::format("{} {}", state->running ? "in" : "after", state->collective);
  if (!state->point_to_point.empty()) text += ", last point-to-point operation " + state->point_to_point;
  return text;
}

std::string PeerMonitor::explain(const Failure& failure, const std::vector<std::optional<PeerState>>& states) const {
  if (!failure.collective) return {};
  for (int r = 0; r < world_size_; ++r) {
    const auto& state = states[static_cast<std::size_t>(r)];
    if (r != rank_ && state && state->left && state->called <= *failure.collective)
      return fmt::format("rank {} has left the group without calling it", r);
  }
  for (int r = 0; r < world_size_; ++r) {
    const auto& state = states[static_cast<std::size_t>(r)];
    if (r == rank_ || !state || state->called != *failure.collective + 1) continue;
    if (state->fingerprint != failure.fingerprint)
      return fmt::format(
          "mismatched collectives: rank {} called {}, but rank {} called {}; all ranks must make the same "
          "calls with the same shapes and dtypes, in the same order",
          rank_, failure.operation, r, state->collective);
  }
  return {};
}

}  // namespace lockstep::distributed
