// How the launchers form a generation of workers.

#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/core/check.h"
#include "lockstep/distributed/launcher/agent.h"

namespace lockstep::launcher {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kPause{100};  // between two looks at a key while waiting

double seconds(milliseconds time) {
  return std::chrono::duration<double>(time).count();
}

SharedFailure has_come(int node) {
  return {node, 0, fmt::format("node {} has come", node), SharedFailure::Kind::node_returned};
}

}  // namespace

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
  agree(has_come(options_.node_rank));
}

// Node 0: waits for the offers of all nodes; in an elastic job, not for those that are gone.
void Agent::decide_layout(milliseconds timeout) {
  const auto start = Clock::now(), deadline = start + timeout;
  const int number = current().number;
  const bool first_time = number == 0;
  bool told = first_time;
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
        wait = wait || first_time || !is_gone(node, number - 1);
      }
    }
    const bool late = Clock::now() >= deadline;
    if (absent.empty() || (elastic() && (!wait || late))) layout = make_layout(offers, options_.min_nproc);
    if (!layout.workers.empty()) break;
    throw_if_interrupted(signals_);
    if (late) {
      const std::string text =
          absent.empty() ? fmt::format("fewer than {} workers are left", options_.min_nproc)
                         : fmt::format("node {} did not get ready for the {} within {:.0f} s", fmt::join(absent, ", "),
                                       first_time ? "start" : "restart", seconds(timeout));
      store_->set(key(number, "refusal"), text);
      throw TimeoutError(text);
    }
    if (!told && !absent.empty() && Clock::now() >= start + kQuietWait) {
      say_(fmt::format("waiting up to {:.0f} s for the launcher of node {} to get ready for the restart",
                       seconds(timeout), fmt::join(absent, ", ")));
      told = true;
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
  if (!first_time && decode_failure(store_->get(key(number - 1, "failure"))).kind != SharedFailure::Kind::node_returned)
    used = 1;
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
      agree(has_come(options_.node_rank));
      const int next = current().number + 1;
      begin({next, {}});
      store_->set(key(next, fmt::format("offer/{}", options_.node_rank)),
                  encode(Offer{options_.nproc_per_node, options_.nproc_per_node, 0, 0, job_}));
      continue;
    }
    if (store_->check({key("refusal")})) throw Error(store_->get(key("refusal")));
    LOCKSTEP_CHECK(!store_gone_, "{}", stop_reason());
    LOCKSTEP_CHECK(Clock::now() < deadline, "node 0's launcher formed no group of workers within {:.0f} s",
                   seconds(timeout));
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace lockstep::launcher
