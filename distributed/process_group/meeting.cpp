#include "lockstep/distributed/process_group/meeting.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/core/deadline.h"
#include "lockstep/distributed/failure/peer_state.h"
#include "lockstep/distributed/failure/refusal.h"

namespace lockstep::distributed {
namespace {

// Between two looks at what has become of a rank that is waited for.
constexpr Milliseconds kLook{250};

std::string process_key(int rank) {
  return "process/" + std::to_string(rank);
}

ProcessIdentity process_of(Store& store, int rank) {
  return PeerState::decode(store.get(process_key(rank))).process;
}

/// "is gone: process 4711 on host7 has ended"; empty for one that runs, as far as one can see.
std::string loss(const ProcessIdentity& process) {
  switch (fate_of(process)) {
    case ProcessFate::gone:
      return fmt::format("is gone: process {} on {} has ended", process.pid, process.host);
    case ProcessFate::stopped:
      return fmt::format("is stopped (SIGSTOP or a debugger): process {} on {}", process.pid, process.host);
    default:
      return {};
  }
}

ProcessIdentity check_not_gone(Store& store, std::string_view backend, int rank) {
  const ProcessIdentity process = process_of(store, rank);
  const std::string lost = loss(process);
  LOCKSTEP_CHECK(lost.empty() || fate_of(process) != ProcessFate::gone,
                 "[{}] rank {} came, but {}; look at the last lines that it wrote", backend, rank, lost);
  return process;
}

void check_not_refused(Store& store, std::string_view backend) {
  const std::string why = refusal_of(store);
  LOCKSTEP_CHECK(why.empty(), "[{}] the ranks cannot meet: {}", backend, why);
}

void check_not_given_up(Store& store, const ProcessGroupOptions& group, std::string_view backend) {
  LOCKSTEP_CHECK(!store.check({"given_up"}),
                 "[{}] rank {} has come too late: {}; start all ranks within the timeout of {} ms, or raise it",
                 backend, group.rank, store.get("given_up"), group.timeout.count());
}

std::string arrival_key(int rank) {
  return "come/" + std::to_string(rank);
}

/// The half of meet() that waits for nobody.
void arrive(Store& store, const ProcessGroupOptions& group, std::string_view backend) {
  check_not_refused(store, backend);
  check_not_given_up(store, group, backend);
  PeerState arrival;
  arrival.process = own_identity();
  store.set(process_key(group.rank), arrival.encode(), group.timeout);
  const std::int64_t times = store.add(arrival_key(group.rank), 1, group.timeout);
  if (times == 1) return;
  throw SameRankError(fmt::format(
      "[{}] rank {} has come {} times: two processes have the same RANK, or {} is left over from an earlier run",
      backend, group.rank, times, store.describe()));
}

void wait_for_all(Store& store, const ProcessGroupOptions& group, std::string_view backend) {
  std::vector<std::string> keys;
  for (int r = 0; r < group.world_size; ++r) keys.push_back(arrival_key(r));
  const Deadline deadline = deadline_in(group.timeout);
  // The more ranks ask, the more rarely they do.
  const Milliseconds slice = std::clamp(Milliseconds(group.world_size), kLook, 8 * kLook);
  for (;;) {
    try {
      return store.wait(keys, std::clamp(time_left(deadline), Milliseconds(1), slice));
    } catch (const TimeoutError&) {
    }
    check_not_refused(store, backend);
    if (has_passed(deadline)) break;
  }
  std::string missing;
  for (int r = 0; r < group.world_size; ++r)
    if (!store.check({arrival_key(r)})) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
  if (missing.empty()) return check_not_given_up(store, group, backend);
  store.compare_set("given_up", "",
                    "the others have given up waiting for it after " + std::to_string(group.timeout.count()) + " ms");
  LOCKSTEP_CHECK(false, "[{}] of {} ranks, these did not come within {} ms: {}; start them, or correct WORLD_SIZE",
                 backend, group.world_size, group.timeout.count(), missing);
}

}  // namespace

void meet(Store& store, const ProcessGroupOptions& group, std::string_view backend) {
  arrive(store, group, backend);
  wait_for_all(store, group, backend);
}

std::string own_machine() {
  const ProcessIdentity own = own_identity();
  return own.host + " " + own.space;
}

std::optional<LocalPlace> find_local_place(Store& store, const ProcessGroupOptions& group, std::string_view machine,
                                           bool wait) {
  const std::string key = fmt::format("on/{}", machine);
  const std::string own = fmt::format("{} ", group.rank);
  for (std::string seen, added = own;;) {
    const std::string found = store.compare_set(key, seen, added, group.timeout);
    if (found == added) break;
    seen = found;
    added = found + own;
  }
  arrive(store, group, "init");
  if (!wait) return {};
  wait_for_all(store, group, "init");
  LocalPlace place{.rank = 0, .world_size = 0};
  std::istringstream ranks(store.get(key, group.timeout));
  for (int rank = 0; ranks >> rank; ++place.world_size) {
    if (rank < group.rank) ++place.rank;
    check_not_gone(store, "init", rank);  // while it waited for the others, say
  }
  return place;
}

std::string get_from(Store& store, const ProcessGroupOptions& group, std::string_view backend, int rank,
                     const std::string& key) {
  const Deadline deadline = deadline_in(group.timeout);
  for (;;) {
    try {
      return store.get(key, std::clamp(time_left(deadline), Milliseconds(1), kLook));
    } catch (const TimeoutError&) {
    }
    const ProcessIdentity process = check_not_gone(store, backend, rank);
    const std::string lost = loss(process);
    LOCKSTEP_CHECK(!has_passed(deadline),
                   "[{}] rank {} came, but said no more within {} ms ({}); look at the last lines that it wrote",
                   backend, rank, group.timeout.count(),
                   lost.empty() ? fmt::format("process {} on {}", process.pid, process.host) : "it " + lost);
  }
}

std::string lost_ranks(Store& store, const ProcessGroupOptions& group) {
  std::string text;
  try {
    for (int r = 0; r < group.world_size; ++r)
      if (store.check({process_key(r)}))
        if (const std::string lost = loss(process_of(store, r)); !lost.empty())
          text += fmt::format("{}rank {} {}", text.empty() ? "" : "; ", r, lost);
  } catch (const Error&) {  // the store may be what is lost
  }
  return text;
}

}  // namespace lockstep::distributed
