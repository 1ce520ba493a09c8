#include "lockstep/distributed/shm/shm_transport.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/distributed/shm/futex.h"

// ThreadSanitizer knows no fences. What these order is shared with other processes, which it does not see either.
#if defined(__SANITIZE_THREAD__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wtsan"
#endif

namespace lockstep::distributed::shm {
namespace {

using Clock = std::chrono::steady_clock;

// How long a thread looks for news before it sleeps: about what waking it costs.
constexpr std::chrono::microseconds kPatience{100};
// How long it sleeps at most before it asks whether the peer lives.
constexpr std::chrono::milliseconds kNap{50};

/// A descriptor that becomes readable when the process ends, even while nobody has waited for it.
FileDescriptor process_descriptor(std::int32_t pid) {
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

}  // namespace

/// A send or receive. Known to its peer's queue until it is done.
class ShmTransport::Message final : public Request {
 public:
  Message(ShmTransport& transport, int peer, std::uint64_t tag, bool sends, void* data, std::size_t bytes)
      : transport(transport), peer(peer), tag(tag), sends(sends), data(static_cast<std::byte*>(data)), bytes(bytes) {}
  ~Message() override {
    const std::lock_guard lock(transport.mutex_);
    if (!done) transport.withdraw(*this);
  }
  void wait(Deadline deadline) override { transport.wait(*this, 0, deadline); }

  ShmTransport& transport;
  const int peer;
  const std::uint64_t tag;
  const bool sends;
  std::byte* const data;
  const std::size_t bytes;
  std::size_t at = 0;  ///< what has been sent, or what a view's reader is done with
  bool is_view = false;
  bool held = false;  ///< bytes of a view that lie in the ring are being read
  bool queued = false;
  bool begun = false;
  bool done = false;
  bool wrong_size = false;
};

/// Reads a message in its ring. If it has left the ring, for the heap or for its room, it is read in its room.
class ShmTransport::RingView final : public View {
 public:
  RingView(ShmTransport& transport, int peer, std::uint64_t tag, void* room, std::size_t bytes)
      : message(transport, peer, tag, false, room, bytes) {
    message.is_view = true;
  }

  void wait(std::size_t bytes, Deadline deadline) override { message.transport.wait(message, bytes, deadline); }

  const void* next(std::size_t bytes) override {
    const std::lock_guard lock(message.transport.mutex_);
    held_ = bytes;
    if (!message.transport.is_in_ring(message)) return message.data + message.at;
    message.held = true;
    RingReader& ring = message.transport.peer(message.peer).in;
    std::size_t found = 0;
    const std::byte* there = ring.peek(bytes, &found);
    if (found == bytes) return there;
    ring.copy(message.data + message.at, bytes);  // it lies around the end of the ring
    return message.data + message.at;
  }

  void release() override {
    const std::lock_guard lock(message.transport.mutex_);
    message.at += held_;
    if (message.held) message.transport.give_back(message, held_);
    message.held = false;
    held_ = 0;
  }

  Message message;

 private:
  std::size_t held_ = 0;
};

ShmTransport::ShmTransport(Segment segment, int rank, int world_size)
    : segment_(std::move(segment)), rank_(rank), peers_(static_cast<std::size_t>(world_size)) {
  for (int r = 0; r < world_size; ++r) {
    if (r == rank) continue;
    Peer& other = peer(r);
    other.out = RingWriter(segment_.ring(rank, r), segment_.ring_data(rank, r), segment_.ring_bytes());
    other.in = RingReader(segment_.ring(r, rank), segment_.ring_data(r, rank), segment_.ring_bytes());
    other.process = process_descriptor(segment_.rank(r).pid);
  }
}

ShmTransport::~ShmTransport() {
  abort();
}

std::unique_ptr<Transport::Request> ShmTransport::send(int to, std::uint64_t tag, const void* data, std::size_t bytes) {
  auto message = std::make_unique<Message>(*this, to, tag, true, const_cast<void*>(data), bytes);
  const std::lock_guard lock(mutex_);
  check_usable(to);
  peer(to).sends.push_back(message.get());
  message->queued = true;
  push(to);
  return message;
}

std::unique_ptr<Transport::Request> ShmTransport::recv(int from, std::uint64_t tag, void* data, std::size_t bytes) {
  auto message = std::make_unique<Message>(*this, from, tag, false, data, bytes);
  const std::lock_guard lock(mutex_);
  check_usable(from);
  message->queued = true;
  take_early(peer(from), *message);
  return message;
}

std::unique_ptr<Transport::View> ShmTransport::view(int from, std::uint64_t tag, void* room, std::size_t bytes) {
  auto view = std::make_unique<RingView>(*this, from, tag, room, bytes);
  const std::lock_guard lock(mutex_);
  check_usable(from);
  view->message.queued = true;
  take_early(peer(from), view->message);
  return view;
}

void ShmTransport::abort() {
  if (const std::lock_guard lock(mutex_); std::exchange(aborted_, true)) return;
  segment_.rank(rank_).closed.store(1, std::memory_order_release);
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) ring(r);
}

void ShmTransport::check_usable(int to) const {
  if (aborted_) throw TransportError(to, "the group was aborted");
  if (peers_[static_cast<std::size_t>(to)].broken)
    throw TransportError(to, fmt::format("the connection to rank {} is lost", to));
}

bool ShmTransport::advance() {
  bool moved = false;
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (r == rank_) continue;
    moved |= push(r);
    moved |= pull(r);
  }
  return moved;
}

bool ShmTransport::push(int to) {
  Peer& other = peer(to);
  bool moved = false;
  while (!other.sends.empty() && !other.broken) {
    Message& message = *other.sends.front();
    if (!message.begun && !other.out.put_header({message.tag, message.bytes})) break;
    message.begun = true;
    while (message.at < message.bytes) {
      const std::size_t slice = other.out.put(message.data + message.at, message.bytes - message.at);
      if (slice == 0) return moved;
      message.at += slice;
      moved = true;
      wake_if(other.out.control().reader_sleeps, to);
    }
    other.sends.pop_front();
    finish(message);
  }
  return moved;
}

bool ShmTransport::pull(int from) {
  Peer& other = peer(from);
  bool moved = false;
  for (;;) {
    if (!other.incoming) {
      MessageHeader header;
      if (!other.in.take_header(&header)) return moved;
      other.incoming = Incoming{.header = header};
    }
    Incoming& incoming = *other.incoming;
    if (incoming.to == Incoming::To::undecided && !choose_target(other)) return moved;
    if (incoming.to == Incoming::To::view) {
      // Behind it may come what a receive waits for, and the view's reader may wait for that receive's thread.
      if (other.plain_recvs == 0 || incoming.request->held) return moved;
      incoming.to = Incoming::To::request;
    }
    while (incoming.at < incoming.header.bytes) {
      const std::size_t left = incoming.header.bytes - incoming.at;
      std::size_t slice = 0;
      if (incoming.to == Incoming::To::nobody) {
        other.in.peek(left, &slice);
        other.in.skip(slice);
      } else {
        std::byte* const target =
            incoming.to == Incoming::To::request ? incoming.request->data : other.early.back().data.data();
        slice = other.in.take(target + incoming.at, left);
      }
      if (slice == 0) return moved;
      incoming.at += slice;
      moved = true;
      wake_if(other.in.control().writer_sleeps, from);
    }
    if (incoming.to == Incoming::To::request) finish(*incoming.request);
    other.incoming.reset();
  }
}

bool ShmTransport::choose_target(Peer& from) {
  Incoming& incoming = *from.incoming;
  const auto match = std::find_if(from.recvs.begin(), from.recvs.end(),
                                  [&](const Message* message) { return message->tag == incoming.header.tag; });
  if (match != from.recvs.end()) {
    Message& message = **match;
    from.recvs.erase(match);
    if (!message.is_view) --from.plain_recvs;
    message.queued = false;
    message.wrong_size = message.bytes != incoming.header.bytes;
    incoming.to = message.wrong_size ? Incoming::To::nobody
                  : message.is_view  ? Incoming::To::view
                                     : Incoming::To::request;
    incoming.request = &message;
    return true;
  }
  // Nobody waits for it, so it stays where it is, unless it is in somebody's way.
  if (from.recvs.empty()) return false;
  from.early.push_back({incoming.header.tag, std::vector<std::byte>(incoming.header.bytes)});
  incoming.to = Incoming::To::heap;
  return true;
}

void ShmTransport::take_early(Peer& from, Message& message) {
  const auto match =
      std::find_if(from.early.begin(), from.early.end(), [&](const Early& early) { return early.tag == message.tag; });
  if (match == from.early.end()) {
    from.recvs.push_back(&message);
    if (!message.is_view) ++from.plain_recvs;
    return;
  }
  message.queued = false;
  message.wrong_size = message.bytes != match->data.size();
  const bool on_its_way = from.incoming && from.incoming->to == Incoming::To::heap && &*match == &from.early.back();
  const std::size_t here = on_its_way ? from.incoming->at : match->data.size();
  if (!message.wrong_size) std::memcpy(message.data, match->data.data(), here);
  from.early.erase(match);
  if (on_its_way) {
    from.incoming->to = message.wrong_size ? Incoming::To::nobody : Incoming::To::request;
    from.incoming->request = &message;
  } else if (!message.wrong_size) {
    finish(message);
  }
}

void ShmTransport::finish(Message& message) {
  message.queued = false;
  message.done = true;
  // Another thread may sleep until this has happened.
  if (sleepers_ > 0) ring(rank_);
}

void ShmTransport::give_back(Message& message, std::size_t bytes) {
  Peer& from = peer(message.peer);
  from.in.skip(bytes);
  from.incoming->at += bytes;
  if (from.incoming->at == from.incoming->header.bytes) {
    from.incoming.reset();
    finish(message);
  }
  wake_if(from.in.control().writer_sleeps, message.peer);
}

bool ShmTransport::is_ready(const Message& message, std::size_t bytes) {
  if (message.done || !message.is_view) return message.done;
  Peer& from = peer(message.peer);
  if (is_in_ring(message)) return from.in.available(bytes) >= bytes;
  return from.incoming && from.incoming->to == Incoming::To::request && from.incoming->request == &message &&
         from.incoming->at >= message.at + bytes;
}

bool ShmTransport::is_in_ring(const Message& message) {
  const auto& incoming = peer(message.peer).incoming;
  return incoming && incoming->to == Incoming::To::view && incoming->request == &message;
}

void ShmTransport::withdraw(Message& message) {
  Peer& other = peer(message.peer);
  if (message.sends) {
    if (message.queued) std::erase(other.sends, &message);
    other.broken |= message.begun;
    return;
  }
  if (message.queued) {
    other.recvs.remove(&message);
    if (!message.is_view) --other.plain_recvs;
  }
  if (other.incoming && other.incoming->request == &message) other.incoming->to = Incoming::To::nobody;
}

void ShmTransport::wait(Message& message, std::size_t bytes, Deadline deadline) {
  auto patience = Clock::now() + kPatience;
  bool ended = false;
  for (;;) {
    // Read before the look at the rings: what was written before these changed is seen.
    const std::uint32_t seen = segment_.rank(rank_).bell.load(std::memory_order_acquire);
    const bool closed = segment_.rank(message.peer).closed.load(std::memory_order_acquire) != 0;
    bool moved = false;
    {
      const std::lock_guard lock(mutex_);
      moved = advance();
      if (is_ready(message, bytes)) return;
      check_usable(message.peer);
      if (message.wrong_size)
        throw TransportError(message.peer, fmt::format("rank {} sent a message of another size", message.peer));
    }
    if (ended) throw TransportError(message.peer, fmt::format("the process of rank {} has ended", message.peer));
    if (closed) throw TransportError(message.peer, fmt::format("rank {} has closed the connection", message.peer));
    const auto now = Clock::now();
    if (now >= deadline)
      throw TransportError(message.peer, fmt::format("timed out waiting for rank {}", message.peer), Way::memory);
    if (moved) {
      patience = now + kPatience;
    } else if (now < patience) {
      sched_yield();
    } else {
      sleep(message, bytes, seen, deadline);
      ended = has_ended(message.peer);
      patience = Clock::now() + kPatience;
    }
  }
}

void ShmTransport::sleep(const Message& message, std::size_t bytes, std::uint32_t seen, Deadline deadline) {
  {
    const std::lock_guard lock(mutex_);
    set_flags(1);
    // Either the others see the flags after they have moved, or what they have moved is seen here.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    advance();
    if (is_ready(message, bytes) || aborted_) return;
    ++sleepers_;
  }
  const std::chrono::nanoseconds left = deadline - Clock::now();
  if (left.count() > 0) futex_wait(segment_.rank(rank_).bell, seen, std::min<std::chrono::nanoseconds>(left, kNap));
  const std::lock_guard lock(mutex_);
  if (--sleepers_ == 0) set_flags(0);
}

void ShmTransport::set_flags(std::uint32_t sleeps) {
  for (std::size_t r = 0; r < peers_.size(); ++r) {
    if (static_cast<int>(r) == rank_) continue;
    Peer& other = peers_[r];
    const bool reads = !other.recvs.empty() || (other.incoming && other.incoming->to != Incoming::To::undecided);
    if (reads || sleeps == 0) other.in.control().reader_sleeps.store(sleeps, std::memory_order_relaxed);
    if (!other.sends.empty() || sleeps == 0) other.out.control().writer_sleeps.store(sleeps, std::memory_order_relaxed);
  }
}

void ShmTransport::wake_if(std::atomic<std::uint32_t>& sleeps, int rank) {
  // Either the other side sees what has moved before it sleeps, or its flag is seen here.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (sleeps.load(std::memory_order_relaxed) != 0 && sleeps.exchange(0, std::memory_order_relaxed) != 0) ring(rank);
}

bool ShmTransport::has_ended(int rank) const {
  const Peer& other = peers_[static_cast<std::size_t>(rank)];
  if (!other.process) return kill(segment_.rank(rank).pid, 0) != 0 && errno == ESRCH;
  pollfd entry{other.process.get(), POLLIN, 0};
  return poll(&entry, 1, 0) == 1;
}

void ShmTransport::ring(int rank) {
  std::atomic<std::uint32_t>& bell = segment_.rank(rank).bell;
  bell.fetch_add(1, std::memory_order_release);
  futex_wake(bell);
}

}  // namespace lockstep::distributed::shm
