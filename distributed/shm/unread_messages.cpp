// What lies in the rings and on the heap, and was asked for by nobody.

#include <algorithm>

#include "lockstep/distributed/shm/shm_transport.h"

namespace lockstep::distributed::shm {

int ShmTransport::unread() {
  const std::lock_guard lock(mutex_);
  advance();
  const auto found = std::ranges::find_if(peers_, [](const Peer& p) { return p.incoming || !p.early.empty(); });
  return found == peers_.end() ? -1 : static_cast<int>(found - peers_.begin());
}

int ShmTransport::unread_up_to(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  const auto ended = [number](std::uint64_t tag) { return is_of_collective_up_to(tag, number); };
  // A rank's collectives come in their order, so the first that lies here says it, however far that rank is ahead.
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (r == rank_) continue;
    pull(r);
    const Peer& other = peer(r);
    const auto first = std::ranges::find_if(other.early, is_of_collective, &Early::tag);
    const bool comes = other.incoming && other.incoming->to == Incoming::To::undecided;
    if (first != other.early.end() ? ended(first->tag) : comes && ended(other.incoming->header.tag)) return r;
  }
  return -1;
}

}  // namespace lockstep::distributed::shm
