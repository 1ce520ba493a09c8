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
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (r == rank_) continue;
    pull(r);
    const Peer& other = peer(r);
    if (other.incoming && other.incoming->to == Incoming::To::undecided && ended(other.incoming->header.tag)) return r;
    if (std::ranges::any_of(other.early, ended, &Early::tag)) return r;
  }
  return -1;
}

}  // namespace lockstep::distributed::shm
