#include "lockstep/distributed/launcher/agent.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <csignal>

#include "lockstep/core/check.h"
#include "lockstep/core/start_thread.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{100};   // between two looks at a key while waiting
constexpr milliseconds kPulse{1000};  // between two signs of life

double seconds(milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

std::string describe(const Options& options) {
  std::string text = fmt::format("--nnodes {} --nproc-per-node {} --max-restarts {}", options.nnodes,
                                 options.nproc_per_node, options.max_restarts);
  if (options.min_nproc > 0) text += fmt::format(" --min-nproc {}", options.min_nproc);
  return text;
}

// "<node> <exit status> <returned> <text>"
std::string encode(const SharedFailure& failure) {
  return fmt::format("{} {} {} {}", failure.node, failure.exit_status, failure.node_returned ? 1 : 0, failure.text);
}

SharedFailure decode(const std::string& value) {
  SharedFailure failure;
  const char* at = value.data();
  const char* const end = at + value.size();
  int returned = 0;
  for (int* number : {&failure.node, &failure.exit_status, &returned}) {
    const auto read = std::from_chars(at, end, *number);
    LOCKSTEP_CHECK(read.ec == std::errc() && read.ptr < end, "another launcher's report is not understood: '{}'",
                   value);
    at = read.ptr + 1;
  }
  failure.node_returned = returned != 0;
  failure.text.assign(at, end);
  return failure;
}

}  // namespace

void throw_if_interrupted(SignalPipe& signals) {
  for (const int signal : signals.take())
    if (asks_to_end(signal)) throw Interrupted{signal};
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
  incarnation_ = store_->add(fmt::format("claim/{}", options_.node_rank), 1);
  if (incarnation_ != 1 && !elastic())
    throw UsageError(
        fmt::format("a launcher with --node-rank {} has joined this job already; give each node its own "
                    "number below {}",
                    options_.node_rank, options_.nnodes));
  for (int node = 0; node < options_.nnodes; ++node) generation_.members.push_back(node);
  if (!elastic()) {
    store_->set(fmt::format("join/{}", options_.node_rank), "1");
    wait_for_all("join", options_.join_timeout, "join the job");
  }
  thread_ = start_thread("the watch over the other launchers", [this] { watch(); });
}

Agent::~Agent() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
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
    if (Clock::now() >= deadline)
      throw TimeoutError(
          fmt::format("node {} did not {} within {:.0f} s; start a launcher there with the same "
                      "--master-addr, --master-port and LOCKSTEP_TOKEN",
                      fmt::join(absent, ", "), what, seconds(timeout)));
    std::this_thread::sleep_for(kPause);
  }
}

Layout Agent::form(const Offer& mine) {
  const bool first_time = current().number < 0;
  job_ = mine.job;
  if (first_time) end_running_generation();
  const int number = current().number + 1;
  // Who was lost with the last generation is not missed in this one.
  begin({number, {}});
  store_->set(key(number, fmt::format("offer/{}", options_.node_rank)), encode(mine));
  const milliseconds timeout = first_time ? options_.join_timeout : options_.kill_after + options_.silence_timeout;
  if (options_.node_rank == 0) decide_layout(timeout);
  const Layout layout = decode_layout(wait_for_layout(2 * timeout));
  begin({layout.generation, layout.nodes()});
  return layout;
}

// A launcher that comes late, or comes back, finds workers running without it.
void Agent::end_running_generation() {
  if (!elastic() || options_.node_rank == 0 || !store_->check({"generation"})) return;
  const int running = static_cast<int>(store_->add("generation", 0));
  begin({running, {}});
  for (int node = 0; node < options_.nnodes; ++node)
    LOCKSTEP_CHECK(!store_->check({key(running, fmt::format("done/{}", node))}),
                   "the job is about to end; node {} has come too late to take part", options_.node_rank);
  agree({options_.node_rank, 0, fmt::format("node {} has come", options_.node_rank), /*node_returned=*/true});
}

// Node 0: waits for the offers of all nodes; in an elastic job, only for those that show signs of life.
void Agent::decide_layout(milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const int number = current().number;
  const bool first_time = number == 0;
  Layout layout;
  std::map<int, Offer> offers;
  for (;;) {
    offers.clear();
    std::vector<int> absent;
    bool wait = false;
    for (int node = 0; node < options_.nnodes; ++node) {
      const std::string offer = key(number, fmt::format("offer/{}", node));
      if (store_->check({offer})) {
        offers[node] = decode_offer(store_->get(offer));
      } else {
        absent.push_back(node);
        wait = wait || first_time || !is_silent(node);
      }
    }
    const bool late = Clock::now() >= deadline;
    if (absent.empty() || (elastic() && (!wait || late))) layout = make_layout(offers, options_.min_nproc);
    if (!layout.workers.empty()) break;
    throw_if_interrupted(signals_);
    if (store_->check({"refusal"})) throw UsageError(store_->get("refusal"));
    if (late) {
      const std::string text =
          absent.empty() ? fmt::format("fewer than {} workers are left", options_.min_nproc)
                         : fmt::format("node {} did not get ready for the {} within {:.0f} s", fmt::join(absent, ", "),
                                       first_time ? "start" : "restart", seconds(timeout));
      store_->set("refusal", text);
      throw TimeoutError(text);
    }
    std::this_thread::sleep_for(kPause);
  }
  layout.generation = number;
  // At first, what others have seen under an earlier launcher of node 0.
  int used = 0;
  for (const auto& [node, offer] : offers) {
    // The name is that of who has seen most of the job; at its beginning, node 0's.
    if (layout.job.empty() || offer.starts > layout.starts) layout.job = offer.job;
    layout.starts = std::max(layout.starts, offer.starts);
    if (first_time) used = std::max(used, offer.restarts);
  }
  if (!first_time && !decode(store_->get(key(number - 1, "failure"))).node_returned) used = 1;
  layout.restarts = static_cast<int>(store_->add("restarts", used));
  store_->set(key(number, "layout"), encode(layout));
  store_->set("generation", std::to_string(layout.generation));
}

std::string Agent::wait_for_layout(milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  while (true) {
    throw_if_interrupted(signals_);
    if (store_->check({key("layout")})) {
      const std::string text = store_->get(key("layout"));
      if (decode_layout(text).workers.contains(options_.node_rank)) return text;
      // Formed without this node, which came too late: the next one.
      agree({options_.node_rank, 0, fmt::format("node {} has come", options_.node_rank), /*node_returned=*/true});
      const int next = current().number + 1;
      begin({next, {}});
      store_->set(key(next, fmt::format("offer/{}", options_.node_rank)),
                  encode(Offer{options_.nproc_per_node, options_.nproc_per_node, 0, 0, job_}));
      continue;
    }
    if (store_->check({"refusal"})) throw Error(store_->get("refusal"));
    LOCKSTEP_CHECK(Clock::now() < deadline, "node 0's launcher formed no group of workers within {:.0f} s",
                   seconds(timeout));
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
    return decode(store_->compare_set(key(generation, "failure"), "", encode(mine)));
  } catch (const Error&) {
    store_gone_ = true;
    return mine;  // with the store, every other opinion is gone
  }
}

std::optional<SharedFailure> Agent::others_failure(milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  try {
    while (!store_gone_ && Clock::now() < deadline) {
      if (store_->check({key("failure")})) return decode(store_->get(key("failure")));
      std::this_thread::sleep_for(kPause / 4);
    }
  } catch (const Error&) {
    store_gone_ = true;
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
  const auto deadline = Clock::now() + options_.kill_after + options_.silence_timeout;
  for (;;) {
    throw_if_interrupted(signals_);
    std::vector<int> absent = missing(key("left"));
    std::erase_if(absent, [this](int node) { return is_silent(node); });  // a lost one does not say that it leaves
    if (absent.empty() || Clock::now() >= deadline) return;
    std::this_thread::sleep_for(kPause);
  }
}

void Agent::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_ && !store_gone_ && !replaced_) {
    lock.unlock();
    look_once();
    lock.lock();
    wake_.wait_for(lock, kPulse, [this] { return ending_; });
  }
}

void Agent::look_once() {
  const Generation generation = current();
  std::string reason;
  try {
    store_->add(fmt::format("pulse/{}", options_.node_rank), 1);
    if (options_.node_rank == 0 && generation.number >= 0) look_for_silent_nodes(generation);
    const std::string failure_key = key(generation.number, "failure");
    if (generation.number >= 0 && store_->check({failure_key})) reason = decode(store_->get(failure_key)).text;
    if (store_->add(fmt::format("claim/{}", options_.node_rank), 0) != incarnation_) {
      replaced_ = true;
      reason = fmt::format("another launcher has come with --node-rank {}", options_.node_rank);
    }
  } catch (const Error& error) {
    store_gone_ = true;
    reason = fmt::format("the store that node 0's launcher serves is gone ({})", error.what());
  }
  const std::lock_guard lock(mutex_);
  if (generation.number == generation_.number) stop_reason_ = reason;
}

bool Agent::is_silent(int node) {
  const std::int64_t count = store_->add(fmt::format("pulse/{}", node), 0);
  const auto now = Clock::now();
  const std::lock_guard lock(pulse_mutex_);
  Pulse& pulse = pulses_[static_cast<std::size_t>(node)];
  if (count != pulse.count) pulse = Pulse{count, now};
  return now - pulse.changed >= options_.silence_timeout;
}

void Agent::look_for_silent_nodes(const Generation& generation) {
  for (const int node : generation.members)
    if (node != 0 && is_silent(node) && !store_->check({key(generation.number, fmt::format("left/{}", node))}))
      agree_in(generation.number, {node, 1,
                                   fmt::format("node {}'s launcher has given no sign of life for {:.0f} s", node,
                                               seconds(options_.silence_timeout))});
}

}  // namespace lockstep::launcher
