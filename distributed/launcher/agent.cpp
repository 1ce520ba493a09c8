#include "distributed/launcher/agent.h"

#include <fmt/ranges.h>

#include <charconv>
#include <csignal>

#include "core/check.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{100};   // between two looks at a key while waiting
constexpr milliseconds kPulse{1000};  // between two signs of life

std::string describe(const Options& options) {
  return fmt::format("--nnodes {} --nproc-per-node {} --max-restarts {}", options.nnodes, options.nproc_per_node,
                     options.max_restarts);
}

// "<node> <exit status> <text>"
std::string encode(const SharedFailure& failure) {
  return fmt::format("{} {} {}", failure.node, failure.exit_status, failure.text);
}

SharedFailure decode(const std::string& value) {
  SharedFailure failure;
  const char* end = value.data() + value.size();
  const auto node = std::from_chars(value.data(), end, failure.node);
  LOCKSTEP_CHECK(node.ec == std::errc() && node.ptr < end, "another launcher's report is not understood: '{}'", value);
  const auto status = std::from_chars(node.ptr + 1, end, failure.exit_status);
  LOCKSTEP_CHECK(status.ec == std::errc() && status.ptr < end, "another launcher's report is not understood: '{}'",
                 value);
  failure.text.assign(status.ptr + 1, end);
  return failure;
}

}  // namespace

void throw_if_interrupted(SignalPipe& signals) {
  for (const int signal : signals.take())
    if (signal != SIGCHLD) throw Interrupted{signal};
}

Agent::Agent(distributed::StorePtr store, const Options& options, SignalPipe& signals)
    : store_(std::move(store)), options_(options), signals_(signals), pulses_(options.nnodes) {
  const std::string mine = describe(options_);
  const std::string first = store_->compare_set("layout", "", mine);
  if (first != mine) {
    const std::string refusal = fmt::format(
        "the nodes of this job were started differently: node {} with {}, another with {}; give all the same",
        options_.node_rank, mine, first);
    store_->set("refusal", refusal);  // so that the others do not wait for this one
    throw UsageError(refusal);
  }
  if (store_->add(fmt::format("claim/{}", options_.node_rank), 1) != 1)
    throw UsageError(
        fmt::format("a launcher with --node-rank {} has joined this job already; give each node its own "
                    "number below {}",
                    options_.node_rank, options_.nnodes));
  store_->set(fmt::format("join/{}", options_.node_rank), "1");
  wait_for_all("join", options_.join_timeout, "join the job");
  thread_ = std::thread([this] { watch(); });
}

Agent::~Agent() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::string Agent::key(const std::string& name) const {
  return fmt::format("{}/{}", generation_.load(), name);
}

std::vector<int> Agent::missing(const std::string& name) {
  std::vector<int> nodes;
  for (int node = 0; node < options_.nnodes; ++node)
    if (!store_->check({fmt::format("{}/{}", name, node)})) nodes.push_back(node);
  return nodes;
}

void Agent::wait_for_all(const std::string& name, milliseconds timeout, const std::string& what) {
  const auto deadline = Clock::now() + timeout;
  std::vector<int> absent;
  while (!(absent = missing(name)).empty()) {
    throw_if_interrupted(signals_);
    if (store_->check({"refusal"})) throw UsageError(store_->get("refusal"));
    if (Clock::now() >= deadline)
      throw TimeoutError(
          fmt::format("node {} did not {} within {:.0f} s; start a launcher there with the same "
                      "--master-addr, --master-port and LOCKSTEP_TOKEN",
                      fmt::join(absent, ", "), what, std::chrono::duration<double>(timeout).count()));
    std::this_thread::sleep_for(kPause);
  }
}

std::string Agent::stop_reason() {
  const std::lock_guard lock(mutex_);
  return stop_reason_;
}

SharedFailure Agent::agree(const SharedFailure& mine) {
  if (store_gone_) return mine;
  try {
    return decode(store_->compare_set(key("failure"), "", encode(mine)));
  } catch (const Error&) {
    return mine;  // the store is gone, and with it every other opinion
  }
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

void Agent::next_generation() {
  {
    const std::lock_guard lock(mutex_);
    ++generation_;
    stop_reason_.clear();
  }
  store_->set(key(fmt::format("ready/{}", options_.node_rank)), "1");
  wait_for_all(key("ready"), options_.kill_after + options_.silence_timeout, "get ready for the restart");
}

void Agent::leave() {
  if (store_gone_) return;
  try {
    store_->set(key(fmt::format("left/{}", options_.node_rank)), "1");
    if (options_.node_rank == 0)
      wait_for_all(key("left"), options_.kill_after + options_.silence_timeout, "leave the job");
  } catch (const Error&) {
    // Nobody is left to wait for; the outcome is known.
  } catch (const Interrupted&) {
  }
}

void Agent::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_ && !store_gone_) {
    lock.unlock();
    look_once();
    lock.lock();
    wake_.wait_for(lock, kPulse, [this] { return ending_; });
  }
}

void Agent::look_once() {
  const int generation = generation_.load();
  std::string reason;
  try {
    store_->add(fmt::format("pulse/{}", options_.node_rank), 1);
    if (options_.node_rank == 0) look_for_silent_nodes();
    const std::string failure_key = fmt::format("{}/failure", generation);
    if (store_->check({failure_key})) {
      const SharedFailure failure = decode(store_->get(failure_key));
      reason = failure.text;
    }
  } catch (const Error& error) {
    store_gone_ = true;
    reason = fmt::format("the store that node 0's launcher serves is gone ({})", error.what());
  }
  const std::lock_guard lock(mutex_);
  if (generation == generation_.load()) stop_reason_ = reason;
}

void Agent::look_for_silent_nodes() {
  for (int node = 1; node < options_.nnodes; ++node) {
    Pulse& pulse = pulses_[static_cast<std::size_t>(node)];
    const std::int64_t count = store_->add(fmt::format("pulse/{}", node), 0);
    const auto now = Clock::now();
    if (count != pulse.count) {
      pulse = Pulse{count, now};
    } else if (now - pulse.changed >= options_.silence_timeout && !store_->check({key(fmt::format("left/{}", node))})) {
      agree({node, 1,
             fmt::format("node {}'s launcher has given no sign of life for {:.0f} s", node,
                         std::chrono::duration<double>(options_.silence_timeout).count())});
    }
  }
}

}  // namespace lockstep::launcher
