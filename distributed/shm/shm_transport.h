#pragma once

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "lockstep/distributed/collectives/transport.h"
#include "lockstep/distributed/shm/ring.h"
#include "lockstep/distributed/shm/segment.h"

namespace lockstep::distributed::shm {

/// Note [Shared memory transport]
/// A message goes through the ring from its sender to its receiver, which copy it in and out; a send has ended when all
/// of it is in the ring. There is no thread of its own: bytes move while some thread of this rank is in send() or
/// wait(), and a waiting thread moves them for all requests of the rank.
///
/// A ring keeps its messages in order, receives are matched by tag. A message that nobody waits for stays in the ring;
/// if a receive is posted for one behind it, it moves to the heap until its own is.
///
/// A view is read out of the ring, and holds up what is behind it there until it has been read, unless a receive from
/// the same rank waits: then the rest of the view moves to its room, because the view's reader may have to wait for
/// what that receive's thread does next.
///
/// Waiting: a thread that has nothing to move looks again for a short time, giving the core to others after each look,
/// then sleeps on its rank's bell (a futex), which the other side rings after it has moved. So a rank costs nobody a
/// core while it waits for others that compute. It looks up now and then whether the peer's process still lives.
class ShmTransport final : public Transport {
 public:
  /// Every rank's PID must be in the segment by now.
  ShmTransport(Segment segment, int rank, int world_size);
  ~ShmTransport() override;

  std::unique_ptr<Request> send(int to, std::uint64_t tag, const void* data, std::size_t bytes) override;
  std::unique_ptr<Request> recv(int from, std::uint64_t tag, void* data, std::size_t bytes) override;
  std::unique_ptr<View> view(int from, std::uint64_t tag, void* room, std::size_t bytes) override;
  int unread() override;
  int unread_up_to(std::uint64_t number) override;
  void abort() override;

 private:
  class Message;
  class RingView;

  /// A message that came before its receive.
  struct Early {
    std::uint64_t tag;
    std::vector<std::byte> data;
  };

  /// What is coming out of a ring.
  struct Incoming {
    enum class To { undecided, request, view, heap, nobody };

    MessageHeader header;
    std::size_t at = 0;
    To to = To::undecided;
    Message* request = nullptr;
  };

  struct Peer {
    RingWriter out;
    RingReader in;
    std::deque<Message*> sends;
    std::list<Message*> recvs;  // that have met no message
    int plain_recvs = 0;        // of these, how many are no views
    std::list<Early> early;     // the last one may be on its way
    std::optional<Incoming> incoming;
    bool broken = false;  // what this rank sends ended within a message
    FileDescriptor process;
  };

  // All of these need the lock.
  /// Moves what can be moved; false if that was nothing.
  bool advance();
  bool push(int to);
  bool pull(int from);
  bool choose_target(Peer& from);
  void take_early(Peer& from, Message& message);
  void finish(Message& message);
  /// Gives bytes of a view back to the ring.
  void give_back(Message& message, std::size_t bytes);
  bool is_ready(const Message& message, std::size_t bytes);
  /// Of a view: its next bytes are read, or will be, where they lie in the ring.
  bool is_in_ring(const Message& message);
  void withdraw(Message& message);
  void check_usable(int to) const;
  void set_flags(std::uint32_t sleeps);

  /// Until the message is done; of a view, until its next `bytes` bytes are in the ring.
  void wait(Message& message, std::size_t bytes, Deadline deadline);
  /// Until the bell is no longer what was `seen`, or some time has passed.
  void sleep(const Message& message, std::size_t bytes, std::uint32_t seen, Deadline deadline);
  bool has_ended(int rank) const;
  void wake_if(std::atomic<std::uint32_t>& sleeps, int rank);
  void ring(int rank);
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  Segment segment_;
  int rank_;
  std::vector<Peer> peers_;
  std::mutex mutex_;
  bool aborted_ = false;
  int sleepers_ = 0;
};

}  // namespace lockstep::distributed::shm
