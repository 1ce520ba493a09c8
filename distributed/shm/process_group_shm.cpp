#include <unistd.h>

#include <optional>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/distributed/process_group/meeting.h"
#include "lockstep/distributed/process_group/transport_executor.h"
#include "lockstep/distributed/shm/shm.h"
#include "lockstep/distributed/shm/shm_transport.h"
#include "lockstep/distributed/store/prefix_store.h"

namespace lockstep::distributed::shm {
namespace {

constexpr const char* kTicketKey = "ticket";

/// Rank 0 makes the segment, the others open it by its ticket. Throws Error if this rank cannot.
Segment share(Store& store, const ProcessGroupOptions& group, const std::string& ticket) {
  if (group.rank == 0) {
    std::optional<Segment> segment;
    std::string own_ticket;
    try {
      segment = Segment::create(group.world_size);
      own_ticket = segment->ticket();
    } catch (const Error&) {
      store.set(kTicketKey, "", group.timeout);
      throw;
    }
    store.set(kTicketKey, own_ticket, group.timeout);
    return std::move(*segment);
  }
  LOCKSTEP_CHECK(!ticket.empty(), "[shm] rank 0 has no segment");
  return Segment::open(ticket, group.world_size);
}

}  // namespace

Attempt try_process_group(const StorePtr& store, const ProcessGroupOptions& group) {
  LOCKSTEP_CHECK(store, "[shm] needs a store to meet the other ranks; found none");
  if (group.world_size > Segment::kMaxRanks)
    return {nullptr, fmt::format("[shm] {} ranks; expected at most {}", group.world_size, Segment::kMaxRanks)};
  meet(*store, group, "shm");
  const auto key = [](int rank) { return "obstacle/" + std::to_string(rank); };
  std::optional<Segment> segment;
  std::string obstacle;
  const std::string ticket = group.rank == 0 ? "" : get_from(*store, group, "shm", 0, kTicketKey);
  try {
    segment = share(*store, group, ticket);
    segment->rank(group.rank).pid = getpid();
  } catch (const StoreError&) {
    throw;
  } catch (const TimeoutError&) {
    throw;
  } catch (const Error& error) {
    obstacle = fmt::format("rank {}: {}", group.rank, error.what());
  }
  store->set(key(group.rank), obstacle, group.timeout);
  // All ranks read the same, and so decide alike.
  for (int r = 0; r < group.world_size; ++r)
    if (std::string found = get_from(*store, group, "shm", r, key(r)); !found.empty())
      return {nullptr, std::move(found)};
  segment->close_file();
  return {make_transport_group("shm", group,
                               std::make_unique<ShmTransport>(std::move(*segment), group.rank, group.world_size),
                               std::make_shared<PrefixStore>("monitor", store)),
          {}};
}

ProcessGroupPtr make_process_group(const StorePtr& store, const ProcessGroupOptions& group) {
  Attempt attempt = try_process_group(store, group);
  LOCKSTEP_CHECK(attempt.group, "[shm] the ranks cannot share memory ({}); use the gloo backend", attempt.obstacle);
  return std::move(attempt.group);
}

}  // namespace lockstep::distributed::shm
