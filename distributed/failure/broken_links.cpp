#include "lockstep/distributed/failure/broken_links.h"

#include <algorithm>

#include "lockstep/core/check.h"

namespace lockstep::distributed {
namespace {

/// Whether both are in one collective, or `to` has done its part in it.
bool have_met(const PeerState& from, const PeerState& to) {
  if (!from.running || to.called < from.called) return false;
  return to.called > from.called || !to.running || to.fingerprint == from.fingerprint;
}

/// One that has come to it much later than `from` may be what it waited for.
bool came_late(const PeerState& from, const PeerState& other, std::int64_t now_ms) {
  return 2 * (now_ms - other.since_ms) < now_ms - from.since_ms;
}

bool is_inside_a_machine(const BrokenLink& link) {
  return link.way == Way::memory || link.way == Way::loopback;
}

int job_rank(int rank, const std::vector<int>& ranks) {
  return ranks.empty() ? rank : ranks[static_cast<std::size_t>(rank)];
}

std::string between(const BrokenLink& link, const std::vector<int>& ranks) {
  const auto [low, high] = std::minmax({job_rank(link.from, ranks), job_rank(link.to, ranks)});
  return ranks_text({low, high});
}

}  // namespace

std::vector<BrokenLink> broken_links(const std::vector<Observation>& observations, std::int64_t now_ms) {
  const int world = static_cast<int>(observations.size());
  const auto at = [&](int rank) -> const Observation& { return observations[static_cast<std::size_t>(rank)]; };
  std::uint64_t last = 0;  // the collective that the foremost rank is in
  for (const Observation& seen : observations) {
    if (!seen.answered || !seen.state || seen.state->left || !seen.state->elsewhere.empty()) return {};
    if (!seen.state->exception.empty() || !seen.state->ended_by.empty()) return {};
    if (seen.state->running) last = std::max(last, seen.state->called);
  }
  const bool one_computes = std::ranges::any_of(
      observations, [&](const Observation& seen) { return !seen.state->running && seen.state->called < last; });
  std::vector<BrokenLink> links;
  for (int r = 0; r < world; ++r) {
    const PeerState& from = *at(r).state;
    const int peer = at(r).state->lost_peer;
    if (peer < 0 || peer >= world || peer == r) continue;
    const PeerState& to = *at(peer).state;
    if (!have_met(from, to) || came_late(from, to, now_ms)) continue;
    // One that is in it as well may itself wait for a third one, which computes, or has just come.
    const bool has_done = to.called > from.called || !to.running;
    const bool waits_for_third = one_computes || std::ranges::any_of(observations, [&](const Observation& other) {
                                   return other.state->called == from.called && came_late(from, *other.state, now_ms);
                                 });
    if (!has_done && waits_for_third) continue;
    const bool mutual = to.lost_peer == r;
    const BrokenLink link = mutual ? BrokenLink{std::min(r, peer), std::max(r, peer), true, from.missed}
                                   : BrokenLink{r, peer, false, from.missed};
    if (std::ranges::find(links, link) == links.end()) links.push_back(link);
  }
  // What a rank waits for that itself waits for a third one does not come for that reason.
  std::vector<BrokenLink> first;
  std::ranges::copy_if(links, std::back_inserter(first), &BrokenLink::mutual);
  if (first.empty())
    std::ranges::copy_if(links, std::back_inserter(first), [&](const BrokenLink& link) {
      return std::ranges::find(links, link.to, &BrokenLink::from) == links.end();
    });
  if (first.empty()) first = links;
  return first;
}

std::string text_of(const std::vector<BrokenLink>& links, const std::vector<int>& ranks) {
  std::string text;
  for (const BrokenLink& link : links) {
    text += text.empty() ? "" : "; ";
    const int from = job_rank(link.from, ranks), to = job_rank(link.to, ranks);
    if (is_inside_a_machine(link))
      text += link.mutual ? between(link, ranks) + " have waited for each other longer than the timeout"
                          : fmt::format("rank {} has waited for rank {} longer than the timeout", from, to);
    else
      text += link.mutual ? between(link, ranks) + " do not hear each other"
                          : fmt::format("rank {} hears nothing of rank {}", from, to);
  }
  return text + ", although all ranks live and reach the store";
}

std::string culprits_of(const BrokenLink& link, const std::vector<int>& ranks) {
  if (is_inside_a_machine(link)) return "slow work on " + between(link, ranks) + ", or a timeout that is too short";
  return "the link between " + between(link, ranks);
}

std::string remedy_of(const std::vector<BrokenLink>& links, const std::vector<Observation>& observations,
                      const std::vector<int>& ranks) {
  const BrokenLink& link = links.front();
  const auto process = [&](int rank) {
    const ProcessIdentity& identity = observations[static_cast<std::size_t>(rank)].state->process;
    return fmt::format("process {} on {}", identity.pid, identity.host);
  };
  if (is_inside_a_machine(link))
    return fmt::format(
        "{} ({}, {}) exchange messages {}, where no link can be cut: the operation was too slow for the timeout. Look "
        "whether more processes and threads compute there than it has cores (LOCKSTEP_NUM_THREADS), or raise the "
        "timeout",
        between(link, ranks), process(link.from), process(link.to),
        link.way == Way::memory ? "through memory that they share" : "inside one machine");
  return fmt::format(
      "look for what keeps {} ({}, {}) from each other: a cut link, a firewall between the two, or packets that are "
      "too large for the way (MTU); LOCKSTEP_INTERFACE chooses another way. If the "
      "operation only takes long, raise the timeout",
      between(link, ranks), process(link.from), process(link.to));
}

}  // namespace lockstep::distributed
