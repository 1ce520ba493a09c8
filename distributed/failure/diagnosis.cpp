#include "lockstep/distributed/failure/diagnosis.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/distributed/failure/broken_links.h"
#include "lockstep/distributed/failure/process_end.h"

namespace lockstep::distributed {
namespace {

/// From harmless to what explains a failure best; of several kinds the last is the cause.
enum class Verdict { in_place, unknown, behind, silent, stopped, gone, mismatched, left, threw, ended };

bool is_live(const Observation& seen) {
  return seen.answered && seen.state->ended_by.empty() && !seen.state->left;
}

bool has_had_exception(const Observation& seen) {
  return seen.state && !seen.state->exception.empty();
}

/// The number of collectives that the foremost rank in one has begun; 0 if no rank is in one.
std::uint64_t front_of(const std::vector<Observation>& observations) {
  std::uint64_t front = 0;
  for (const Observation& seen : observations)
    if (seen.state && seen.state->running && !seen.state->left) front = std::max(front, seen.state->called);
  return front;
}

/// What most ranks in the foremost collective have called; of two equally frequent calls, that of the lowest rank.
std::uint64_t common_call(const std::vector<Observation>& observations, std::uint64_t front) {
  std::map<std::uint64_t, int> votes;
  for (const Observation& seen : observations)
    if (seen.state && seen.state->called == front) ++votes[seen.state->fingerprint];
  std::uint64_t best = 0;
  int most = 0;
  for (const Observation& seen : observations)
    if (seen.state && seen.state->called == front && votes[seen.state->fingerprint] > most) {
      best = seen.state->fingerprint;
      most = votes[best];
    }
  return best;
}

/// The first collective that ranks have called differently, of those that several of them still know.
std::optional<std::uint64_t> first_difference(const std::vector<Observation>& observations) {
  std::map<std::uint64_t, std::uint64_t> fingerprints;  // by number
  std::optional<std::uint64_t> first;
  for (const Observation& seen : observations) {
    if (!seen.state) continue;
    for (const PeerState::Call& call : seen.state->calls) {
      const auto [known, is_new] = fingerprints.try_emplace(call.number, call.fingerprint);
      if (!is_new && known->second != call.fingerprint) first = std::min(first.value_or(call.number), call.number);
    }
  }
  return first;
}

/// Those who called collective `number` alike, and what it was.
struct Callers {
  std::uint64_t fingerprint;
  std::string description;
  std::vector<int> ranks;
};

/// From the fewest to the most; of equally many, who has the lowest rank comes last.
std::vector<Callers> callers_of(const std::vector<Observation>& observations, std::uint64_t number) {
  std::vector<Callers> all;
  for (std::size_t r = 0; r < observations.size(); ++r) {
    if (!observations[r].state) continue;
    for (const PeerState::Call& call : observations[r].state->calls) {
      if (call.number != number) continue;
      auto same = std::ranges::find(all, call.fingerprint, &Callers::fingerprint);
      if (same == all.end()) same = all.insert(all.end(), {call.fingerprint, call.description, {}});
      same->ranks.push_back(static_cast<int>(r));
    }
  }
  std::ranges::reverse(all);
  std::ranges::stable_sort(all, {}, [](const Callers& callers) { return callers.ranks.size(); });
  return all;
}

/// What is wrong with each rank, and how that is told.
class Verdicts {
 public:
  Verdicts(const OperationFailure& failure, const std::vector<Observation>& observations,
           const std::string& store_error, std::int64_t now_ms)
      : failure_(failure),
        observations_(observations),
        store_error_(store_error),
        now_ms_(now_ms),
        front_(front_of(observations)),
        call_(common_call(observations, front_)) {
    for (int r = 0; r < static_cast<int>(observations.size()); ++r) verdicts_.push_back(first_look(r));
    // Some have gone on after an exception, and others have had none. One that waits may have dealt with it: then a
    // rank that has died is the cause.
    if (std::ranges::all_of(observations, has_had_exception)) return;
    const bool one_is_dead = std::ranges::any_of(verdicts_, [](Verdict verdict) {
      return verdict == Verdict::ended || verdict == Verdict::gone || verdict == Verdict::stopped;
    });
    for (std::size_t r = 0; r < verdicts_.size(); ++r)
      if (has_had_exception(observations[r]) && (!one_is_dead || verdicts_[r] > Verdict::gone))
        verdicts_[r] = observations[r].state->is_ended_by_exception() ? Verdict::ended : Verdict::threw;
  }

  Verdict verdict(int rank) const { return verdicts_[static_cast<std::size_t>(rank)]; }

  Verdict first_look(int rank) const {
    const Observation& seen = observations_[static_cast<std::size_t>(rank)];
    if (seen.state && seen.state->left && seen.state->trouble.empty() && seen.state->called >= front_ &&
        rank != failure_.peer)
      return Verdict::in_place;  // it has done its part
    if (seen.state && !seen.state->ended_by.empty()) return Verdict::ended;
    if (seen.state && seen.state->left)  // with trouble: it gave up for the same reason as everybody
      return seen.state->trouble.empty() ? Verdict::left : Verdict::in_place;
    if (seen.state && front_ > 0 && seen.state->called == front_ && seen.state->fingerprint != call_)
      return Verdict::mismatched;
    if (seen.answered && !seen.state->elsewhere.empty()) return Verdict::in_place;  // another group's ranks know more
    if (seen.answered) return front_ > 0 && seen.state->called < front_ ? Verdict::behind : Verdict::in_place;
    if (seen.fate == ProcessFate::gone) return Verdict::gone;
    if (seen.fate == ProcessFate::stopped) return Verdict::stopped;
    // Without the store nobody can answer: then only the rank that was waited for is known to be missing.
    return store_error_.empty() || rank == failure_.peer ? Verdict::silent : Verdict::unknown;
  }

  /// What a rank does or did, without its number and without times, so that equal ones can be told together.
  std::string sentence(int rank, Verdict verdict, bool several) const {
    const Observation& seen = observations_[static_cast<std::size_t>(rank)];
    const char* is = several ? "are" : "is";
    switch (verdict) {
      case Verdict::in_place:
        if (seen.state && seen.state->left && !seen.state->trouble.empty())
          return fmt::format("{} given up too, {}", several ? "have" : "has", place(seen));
        if (seen.state && seen.state->left) return several ? "have ended in good order" : "has ended in good order";
        if (seen.state && seen.state->running)
          return fmt::format("{} in {}{}{}", several ? "wait" : "waits", seen.state->collective,
                             point_to_point(*seen.state), step(*seen.state));
        if (seen.state && !seen.state->elsewhere.empty())
          return fmt::format("{} in {}{}", several ? "wait" : "waits", seen.state->elsewhere, step(*seen.state));
        return fmt::format("{} alive, {}", is, place(seen));
      case Verdict::unknown:
        return fmt::format("{} out of sight, {}", is, place(seen));
      case Verdict::behind:
        if (seen.state && seen.state->running)
          return fmt::format("{} still in {}{}{}", is, seen.state->collective, point_to_point(*seen.state),
                             step(*seen.state));
        return fmt::format("{} alive, but {}", is, place(seen));
      case Verdict::silent:
        return fmt::format("{} not answer, {}{}", several ? "do" : "does", place(seen), process(seen, " (", ")"));
      case Verdict::stopped:
        return fmt::format("{} stopped (SIGSTOP or a debugger), {}{}", is, place(seen), process(seen, " (", ")"));
      case Verdict::gone:
        return fmt::format("{} gone{}, {}", is, process(seen, ": ", several ? " have ended" : " has ended"),
                           place(seen));
      case Verdict::mismatched:
        return fmt::format("called {}{}", seen.state->collective, step(*seen.state));
      case Verdict::left:
        return fmt::format("left the group in good order, {}", place(seen));
      case Verdict::threw:
        if (!seen.state->caught) return fmt::format("{}; {}", reason_of_end(seen.state->exception), place(seen));
        return fmt::format("threw an exception, which the program has caught: {}; {}{}", seen.state->exception,
                           seen.state->left ? "then left the group, " : "", place(seen));
      case Verdict::ended:
        return fmt::format("{}; {}", seen.state->ended_by, place(seen));
    }
    return {};
  }

  std::string age(int rank) const {
    const Observation& seen = observations_[static_cast<std::size_t>(rank)];
    if (!seen.state) return {};
    const double seconds = std::max<double>(0, static_cast<double>(now_ms_ - seen.state->since_ms) / 1000.0);
    return fmt::format("{:.1f} s", seconds);
  }

 private:
  static std::string step(const PeerState& state) {
    return state.step < 0 ? std::string() : fmt::format(" at step {}", state.step);
  }

  std::string place(const Observation& seen) const {
    if (!seen.state) return "never seen in a collective";
    const PeerState& state = *seen.state;
    // Who has not answered told where it was every now and then, and may have come far since.
    const char* seen_at = state.collective.empty() && !seen.answered ? "last told of itself " : "last seen ";
    std::string text = state.collective.empty()
                           ? "before its first collective"
                           : fmt::format("{} {}", state.running ? "in" : "after", state.collective);
    if (!state.elsewhere.empty()) text += ", in " + state.elsewhere;
    return seen_at + text + point_to_point(state) + step(state);
  }

  static std::string point_to_point(const PeerState& state) {
    return state.point_to_point.empty() ? std::string() : ", last point-to-point operation " + state.point_to_point;
  }

  static std::string process(const Observation& seen, const char* before, const char* after) {
    if (!seen.state || seen.state->process.pid <= 0) return {};
    return fmt::format("{}process {} on {}{}", before, seen.state->process.pid, seen.state->process.host, after);
  }

  const OperationFailure& failure_;
  const std::vector<Observation>& observations_;
  const std::string& store_error_;
  std::int64_t now_ms_;
  std::uint64_t front_;
  std::uint64_t call_;
  std::vector<Verdict> verdicts_;
};

constexpr const char* kSameCalls =
    "all ranks must make the same calls with the same shapes and dtypes, in the same order and the same step; "
    "LOCKSTEP_DUMP_DIR=DIR keeps each rank's list of calls";

std::string remedy(Verdict verdict, const std::string& who, const std::optional<PeerState>& state) {
  const auto pid = state ? state->process.pid : -1;
  switch (verdict) {
    case Verdict::ended:
      return {};
    case Verdict::threw:
      if (!state || !state->caught) return {};
      return "a rank that catches what was thrown on it must not go on alone: let it end, or abort() its group";
    case Verdict::left:
      return fmt::format("all ranks must make the same number of calls: look why {} ended earlier than the others",
                         who);
    case Verdict::mismatched:
      return kSameCalls;
    case Verdict::gone:
      return fmt::format("look at the last lines that {} wrote, and in the kernel's log for the out-of-memory killer",
                         who);
    case Verdict::stopped:
      return fmt::format("resume it within the timeout (kill -CONT {}), or end it (kill -KILL {})", pid, pid);
    case Verdict::silent:
      return fmt::format(
          "check that the machine of {} is up and reaches the others (LOCKSTEP_INTERFACE chooses the way)", who);
    case Verdict::behind:
      if (state && state->running)
        return fmt::format(
            "look why {} did not get to the end of that collective: slow work, or the network between two ranks; if "
            "that may last longer, raise the timeout; kill -USR1 {} makes it tell its last calls",
            who, pid);
      return fmt::format(
          "{} may compute, load data or wait for something else; if that may last longer, raise the timeout; "
          "kill -USR1 {} makes it tell its last calls",
          who, pid);
    default:
      return {};
  }
}

}  // namespace

Diagnosis diagnose(const OperationFailure& failure, const std::vector<Observation>& observations,
                   const std::string& store_error, std::int64_t now_ms, const std::vector<int>& ranks) {
  const Verdicts verdicts(failure, observations, store_error, now_ms);
  const int world = static_cast<int>(observations.size());
  Diagnosis result;

  const auto job_rank = [&](int rank) { return ranks.empty() ? rank : ranks[static_cast<std::size_t>(rank)]; };
  const auto names_of = [&](std::vector<int> some) {
    std::ranges::transform(some, some.begin(), job_rank);
    std::ranges::sort(some);
    return ranks_text(some);
  };

  struct Group {
    Verdict verdict;
    std::string key;
    std::vector<int> ranks;
  };
  std::vector<Group> groups;
  Verdict worst = Verdict::in_place;
  for (int r = 0; r < world; ++r) {
    if (is_live(observations[static_cast<std::size_t>(r)])) result.alive.push_back(r);
    const Verdict verdict = verdicts.verdict(r);
    worst = std::max(worst, verdict);
    const std::string key = verdicts.sentence(r, verdict, false);
    const auto same = std::find_if(groups.begin(), groups.end(), [&](const Group& g) { return g.key == key; });
    if (same == groups.end())
      groups.push_back({verdict, key, {r}});
    else
      same->ranks.push_back(r);
  }

  std::string causes, waiting, lines, remedies;
  std::vector<int> culprits;
  for (const Group& group : groups) {
    const int first = group.ranks.front();
    const std::string text =
        fmt::format("{} {}", names_of(group.ranks), verdicts.sentence(first, group.verdict, group.ranks.size() > 1));
    if (group.verdict == worst && worst > Verdict::unknown) {
      causes += (causes.empty() ? "" : "; ") + text;
      culprits.insert(culprits.end(), group.ranks.begin(), group.ranks.end());
      if (remedies.empty())
        remedies = remedy(worst, names_of(group.ranks), observations[static_cast<std::size_t>(first)].state);
    } else if (group.verdict == Verdict::in_place || group.verdict == Verdict::behind) {
      waiting += (waiting.empty() ? "" : "; ") + text;
    }
    lines += "\n  " + text;
    if (const std::string age = verdicts.age(first); !age.empty()) lines += fmt::format(" ({} ago)", age);
    for (const int r : group.ranks) {
      const auto& state = observations[static_cast<std::size_t>(r)].state;
      if (state && !state->trouble.empty() && state->ended_by.empty())
        lines += fmt::format("\n    rank {} says: {}", job_rank(r), state->trouble);
    }
  }
  // Of two mismatches the earlier one is the cause. Ranks that have called different collectives need not wait in them.
  const auto difference = first_difference(observations);
  const bool is_told = worst == Verdict::mismatched && difference && *difference + 1 >= front_of(observations);
  if (difference && !is_told && worst < Verdict::threw && worst != Verdict::gone && worst != Verdict::stopped) {
    worst = Verdict::mismatched;
    causes.clear();
    waiting.clear();
    culprits.clear();
    const std::vector<Callers> all = callers_of(observations, *difference);
    for (const Callers& callers : all) {
      causes += fmt::format("{}{} called {}", causes.empty() ? "" : "; ", names_of(callers.ranks), callers.description);
      if (&callers != &all.back()) culprits.insert(culprits.end(), callers.ranks.begin(), callers.ranks.end());
    }
    if (all.front().description == all.back().description) causes += " after calls that were not the same";
    remedies = remedy(worst, {}, {});
  }
  if (worst == Verdict::mismatched) causes = "mismatched collectives: " + causes;
  if (worst == Verdict::mismatched && std::ranges::all_of(observations, has_had_exception)) {
    causes += fmt::format("; every rank had caught an exception before ({})", observations.front().state->exception);
    remedies =
        "ranks can leave out a step that throws where they have made the same calls in it, and with unequal numbers of "
        "logical shards they have not: look before a step for what may throw, or end and go on from a checkpoint";
  }
  // Nor need anybody be behind where a rank of this group, or of a part of it, knows what it was sent, and by whom.
  for (int r = 0; r < world && worst < Verdict::threw && worst != Verdict::gone && worst != Verdict::stopped; ++r) {
    const auto& state = observations[static_cast<std::size_t>(r)].state;
    if (!state || state->trouble.find(kMismatchedMessages) == std::string::npos) continue;
    causes = state->trouble;
    waiting.clear();
    culprits.clear();
    remedies = kSameCalls;
    break;
  }
  // Nor where two ranks wait for each other, with nothing between them but the network.
  std::vector<BrokenLink> links;
  if (worst <= Verdict::behind && remedies != kSameCalls && store_error.empty())
    links = broken_links(observations, now_ms);
  if (!links.empty()) {
    causes = text_of(links, ranks);
    remedies = remedy_of(links, observations, ranks);
    waiting.clear();
    culprits.clear();
    for (const Group& group : groups)
      waiting += fmt::format("{}{} {}", waiting.empty() ? "" : "; ", names_of(group.ranks),
                             verdicts.sentence(group.ranks.front(), group.verdict, group.ranks.size() > 1));
  }
  // Nobody is missing, and ranks have not met in another group of the job: then one of those has said why.
  for (int r = 0; r < world && causes.empty(); ++r) {
    const auto& state = observations[static_cast<std::size_t>(r)].state;
    if (state && state->trouble.starts_with(kInPart))
      causes = fmt::format("rank {} says: {}", job_rank(r), state->trouble);
  }
  // Or all wait, in different groups: one has left out a call, or made one more.
  const bool all_wait = std::ranges::all_of(observations, [](const Observation& seen) {
    return seen.answered && (seen.state->running || !seen.state->elsewhere.empty());
  });
  if (causes.empty() && all_wait && groups.size() > 1 && worst == Verdict::in_place) {
    causes = "ranks wait for each other in different calls: " + std::exchange(waiting, "");
    remedies = kSameCalls;
  }
  // Or two ranks do not meet point to point, say: what the other one does is all there is.
  if (causes.empty() && failure.peer >= 0 && failure.peer < world)
    causes = fmt::format("{} {}", names_of({failure.peer}),
                         verdicts.sentence(failure.peer, verdicts.verdict(failure.peer), false));
  if (failure.reporter >= 0 && failure.reporter < world)
    if (const auto& state = observations[static_cast<std::size_t>(failure.reporter)].state)
      result.reported = state->trouble;
  if (!culprits.empty()) result.culprits = names_of(culprits);
  if (!links.empty()) result.culprits = culprits_of(links.front(), ranks);
  result.headline = causes;
  if (!causes.empty() && !waiting.empty()) result.headline += "; " + waiting;
  if (!store_error.empty())
    result.headline += fmt::format("{}the store does not answer, so the process that holds it may be gone ({})",
                                   result.headline.empty() ? "" : "; ", store_error);
  result.report =
      fmt::format("the group of {} ranks has failed: {}{}", world, causes.empty() ? failure.cause : causes, lines);
  if (!store_error.empty()) result.report += "\n  the store does not answer: " + store_error;
  if (!remedies.empty()) result.report += "\n  what to do: " + remedies;
  return result;
}

}  // namespace lockstep::distributed
