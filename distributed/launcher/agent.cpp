#include "lockstep/distributed/launcher/agent.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>

#include "lockstep/core/check.h"
#include "lockstep/core/start_thread.h"
#include "lockstep/distributed/store/wire.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{100};   // between two looks at a key while waiting
constexpr milliseconds kPulse{1000};  // between two signs of life
// A launcher that lives has shown another sign of it by then.
constexpr milliseconds kNextPulse{2500};

constexpr const char* kOtherStore = "node 0's launcher was started again, and serves another one";

double seconds(milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string describe(const Options& options) {
  std::string text = fmt::format("--nnodes {} --nproc-per-node {} --max-restarts {}", options.nnodes,
                                 options.nproc_per_node, options.max_restarts);
  if (options.min_nproc > 0) text += fmt::format(" --min-nproc {}", options.min_nproc);
  return text;
}

}  // namespace

void throw_if_interrupted(SignalPipe& signals) {
  for (const int signal : signals.take())
    if (asks_to_end(signal)) throw Interrupted{signal};
}

Agent::Agent(distributed::StorePtr store, const Options& options, SignalPipe& signals, Say say)
    : store_(std::move(store)),
      options_(options),
      signals_(signals),
      say_(std::move(say)),
      place_(fmt::format("claim/{}", options.node_rank)),
      name_(distributed::make_token()),
      pulses_(options.nnodes) {
  const std::string mine = describe(options_);
  const std::string first = store_->compare_set("layout", "", mine);
  if (first != mine) {
    const std::string refusal = fmt::format(
        "the nodes of this job were started differently: node {} with {}, another with {}; give all the same",
        options_.node_rank, mine, first);
    store_->set("refusal", refusal);  // so that those who still wait for the others do not wait for this one
    throw UsageError(refusal);
  }
  take_place();
  for (int node = 0; node < options_.nnodes; ++node) generation_.members.push_back(node);
  if (!elastic()) {
    store_->set(fmt::format("join/{}", options_.node_rank), "1");
    wait_for_all("join", options_.join_timeout, "join the job");
  }
  thread_ = start_thread("the watch over the other launchers", [this] { watch(); });
}

Agent::~Agent() {
  stop_watching();
}

void Agent::stop_watching() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

// Whoever is refused here must leave no trace.
void Agent::take_place() {
  const std::string before = place_holder();
  const bool may_replace = before.empty() || (elastic() && !shows_life(options_.node_rank));
  if (!may_replace || store_->compare_set(place_, before, name_) != name_)
    throw UsageError(
        fmt::format("a launcher with --node-rank {} has joined this job already; give each node its own "
                    "number below {}",
                    options_.node_rank, options_.nnodes));
}

// The name of this node's launcher; empty if it has none.
std::string Agent::place_holder() {
  return store_->compare_set(place_, name_, name_);
}

std::int64_t Agent::pulse(int node) {
  return store_->add(fmt::format("pulse/{}", node), 0);
}

bool Agent::shows_life(int node) {
  const std::int64_t before = pulse(node);
  const auto deadline = Clock::now() + kNextPulse;
  while (Clock::now() < deadline) {
    throw_if_interrupted(signals_);
    std::this_thread::sleep_for(kPause);
    if (pulse(node) != before) return true;
  }
  return false;
}

Agent::Generation Agent::current() {
  const std::lock_guard lock(mutex_);
  return generation_;
}

void Agent::begin(Generation generation) {
  const std::lock_guard lock(mutex_);
  if (generation.number != generation_.number) stop_reason_.clear();
  generation_ = std::move(generation);
}

std::string Agent::key(int generation, const std::string& name) {
  return fmt::format("{}/{}", generation, name);
}

std::vector<int> Agent::missing(const std::string& name) {
  std::vector<int> nodes;
  for (const int node : current().members)
    if (!store_->check({fmt::format("{}/{}", name, node)})) nodes.push_back(node);
  return nodes;
}

void Agent::wait_for_all(const std::string& name, milliseconds timeout, const std::string& what) {
  const auto deadline = Clock::now() + timeout;
  std::vector<int> absent;
  while (!(absent = missing(name)).empty()) {
    throw_if_interrupted(signals_);
    if (store_->check({"refusal"})) throw UsageError(store_->get("refusal"));
    LOCKSTEP_CHECK(!place_holder().empty(), "{}", kOtherStore);
    if (Clock::now() >= deadline)
      throw TimeoutError(
          fmt::format("node {} did not {} within {:.3g} s; start a launcher there with the same "
                      "--master-addr, --master-port and LOCKSTEP_TOKEN; --join-timeout waits longer",
                      fmt::join(absent, ", "), what, seconds(timeout)));
    std::this_thread::sleep_for(kPause);
  }
}

std::string Agent::stop_reason() {
  const std::lock_guard lock(mutex_);
  return stop_reason_;
}

SharedFailure Agent::agree_in(int generation, const SharedFailure& mine) {
  if (store_gone_) return mine;
  try {
    const SharedFailure agreed = decode_failure(store_->compare_set(key(generation, "failure"), "", encode(mine)));
    LOCKSTEP_CHECK(!place_holder().empty(), "{}", kOtherStore);
    return agreed;
  } catch (const Error& error) {
    lose_store(error);
    return mine;  // with the store, every other opinion is gone
  }
}

SharedFailure Agent::lose_store(const Error& error) {
  const std::lock_guard lock(mutex_);
  if (!store_gone_) stop_reason_ = fmt::format("the store that node 0's launcher serves is gone ({})", error.what());
  store_gone_ = true;
  return {0, 1, stop_reason_, SharedFailure::Kind::node_lost};
}

void Agent::announce(const SharedFailure& ending) {
  {
    const std::lock_guard lock(mutex_);
    announced_ = encode(ending);
  }
  wake_.notify_all();
}

std::optional<SharedFailure> Agent::others_failure(milliseconds patience) {
  try {
    std::map<int, std::int64_t> before;
    for (const int node : current().members)
      if (node != options_.node_rank) before[node] = pulse(node);
    for (const auto deadline = Clock::now() + patience; Clock::now() < deadline;) {
      for (const char* name : {"failure", "announced"})
        if (store_->check({key(name)})) return agree(decode_failure(store_->get(key(name))));
      std::this_thread::sleep_for(kPause / 4);
    }
    for (const auto& [node, count] : before)
      if (pulse(node) == count && !store_->check({key(fmt::format("left/{}", node))}))
        return agree({node, 1,
                      fmt::format("node {} is lost: its launcher has given no sign of life for {:.0f} s, since workers "
                                  "failed because of another node's",
                                  node, seconds(patience)),
                      SharedFailure::Kind::node_lost});
  } catch (const Error& error) {
    return lose_store(error);
  }
  return std::nullopt;
}

std::optional<SharedFailure> Agent::finish() {
  store_->set(key(fmt::format("done/{}", options_.node_rank)), "1");
  while (!missing(key("done")).empty()) {
    throw_if_interrupted(signals_);
    const std::string reason = stop_reason();
    if (!reason.empty()) return agree({options_.node_rank, 1, reason});
    std::this_thread::sleep_for(kPause);
  }
  return std::nullopt;
}

void Agent::leave() {
  stop_watching();  // node 0 may be gone with its store once all have left
  if (store_gone_) return;
  try {
    store_->set(key(fmt::format("left/{}", options_.node_rank)), "1");
    if (options_.node_rank == 0) wait_for_the_others_to_leave();
  } catch (const Error&) {
    // Nobody is left to wait for; the outcome is known.
  } catch (const Interrupted&) {
  }
}

void Agent::wait_for_the_others_to_leave() {
  const milliseconds longest = options_.kill_after + options_.silence_timeout;
  const auto start = Clock::now();
  for (bool told = false;;) {
    throw_if_interrupted(signals_);
    const Generation generation = current();
    std::vector<int> present = generation.members;
    std::erase_if(present, [&](int node) { return node == options_.node_rank || is_gone(node, generation.number); });
    if (present.empty() || Clock::now() >= start + longest) return;
    if (!told && Clock::now() >= start + kQuietWait) {
      say_(fmt::format("waiting up to {:.0f} s for the launcher of node {} to end", seconds(longest),
                       fmt::join(present, ", ")));
      told = true;
    }
    std::this_thread::sleep_for(kPause);
  }
}

void Agent::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_ && !store_gone_ && !replaced_) {
    lock.unlock();
    look_once();
    lock.lock();
    wake_.wait_for(lock, kPulse, [this] { return ending_ || !announced_.empty(); });
  }
}

void Agent::look_once() {
  Generation generation;
  std::string reason, announced;
  {
    const std::lock_guard lock(mutex_);
    generation = generation_;
    announced.swap(announced_);
  }
  try {
    if (!announced.empty()) store_->compare_set(key(generation.number, "announced"), "", announced);
    store_->add(fmt::format("pulse/{}", options_.node_rank), 1);
    if (options_.node_rank == 0 && generation.number >= 0) look_for_silent_nodes(generation);
    const std::string failure_key = key(generation.number, "failure");
    if (generation.number >= 0 && store_->check({failure_key})) reason = decode_failure(store_->get(failure_key)).text;
    if (const std::string holder = place_holder(); holder != name_) {
      LOCKSTEP_CHECK(!holder.empty(), "{}", kOtherStore);
      replaced_ = true;
      reason = fmt::format("another launcher has come with --node-rank {}", options_.node_rank);
    }
  } catch (const Error& error) {
    lose_store(error);
    return;
  }
  const std::lock_guard lock(mutex_);
  if (generation.number == generation_.number) stop_reason_ = reason;
}

bool Agent::is_silent(int node) {
  const std::int64_t count = pulse(node);
  const auto now = Clock::now();
  const std::lock_guard lock(pulse_mutex_);
  Pulse& pulse = pulses_[static_cast<std::size_t>(node)];
  if (count != pulse.count) pulse = Pulse{count, now};
  return now - pulse.changed >= options_.silence_timeout;
}

// One that is lost says nothing, one that leaves says so.
bool Agent::is_gone(int node, int generation) {
  if (is_silent(node) || store_->check({key(generation, fmt::format("left/{}", node))})) return true;
  if (!store_->check({key(generation, "failure")})) return false;
  const SharedFailure failure = decode_failure(store_->get(key(generation, "failure")));
  return failure.kind == SharedFailure::Kind::node_lost && failure.node == node;
}

void Agent::look_for_silent_nodes(const Generation& generation) {
  for (const int node : generation.members)
    if (node != 0 && is_silent(node) && !store_->check({key(generation.number, fmt::format("left/{}", node))}))
      agree_in(generation.number, {node, 1,
                                   fmt::format("node {}'s launcher has given no sign of life for {:.0f} s", node,
                                               seconds(options_.silence_timeout)),
                                   SharedFailure::Kind::node_lost});
}

}  // namespace lockstep::launcher
