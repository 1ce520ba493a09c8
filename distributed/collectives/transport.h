#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/distributed/operation/way.h"

namespace lockstep::distributed {

/// A message that did not arrive or could not be sent. The transport is of no more use.
class TransportError : public Error {
 public:
  /// `missed`: by which way nothing has come; none: what has come is wrong, or the wait was ended.
  TransportError(int peer, const std::string& message, Way missed = Way::none)
      : Error(message), peer_(peer), missed_(missed) {}
  /// The rank at the other end.
  int peer() const { return peer_; }
  Way missed() const { return missed_; }

 private:
  int peer_;
  Way missed_;
};

/// A tag of collective `number` of the job's group: it tells the number's last 20 bits and that it is such a tag, which
/// no other is. The rest is `hash`.
constexpr std::uint64_t collective_tag(std::uint64_t hash, std::uint64_t number) {
  return std::uint64_t{1} << 63 | (hash & 0x7ffffffffff00000u) | (number & 0xfffffu);
}
/// A tag of anything else.
constexpr std::uint64_t other_tag(std::uint64_t hash) {
  return hash & ~(std::uint64_t{1} << 63);
}
constexpr bool is_of_collective(std::uint64_t tag) {
  return tag >> 63 == 1;
}
/// True for a collective_tag() of `number` or of an earlier collective, none of which is 2^19 away.
constexpr bool is_of_collective_up_to(std::uint64_t tag, std::uint64_t number) {
  return is_of_collective(tag) && ((number - tag) & 0xfffffu) < 0x80000u;
}

/// Moves bytes between ranks; the collectives are built on it. A message meets the receive posted with the same peer
/// and tag; several with one tag are met in order. Sizes of both sides are equal by construction: the tag depends on
/// them. Thread-safe.
class Transport {
 public:
  /// A send or receive under way. Its memory must stay until wait() returns or the request goes; both are safe to do
  /// after a failure.
  class Request {
   public:
    virtual ~Request() = default;
    /// Throws TransportError at the deadline, when the peer is gone, or after abort().
    virtual void wait(Deadline deadline) = 0;
  };

  /// A receive that is read in order, where the transport has the bytes.
  class View {
   public:
    virtual ~View() = default;
    /// Waits until the next `bytes` bytes are there. Throws as Request::wait() does.
    virtual void wait(std::size_t bytes, Deadline deadline) = 0;
    /// The next `bytes` bytes, which wait() has seen; good until release(), which must come before the next call. What
    /// the peer has sent behind them may not arrive before release(), so nobody may wait for a peer in between.
    virtual const void* next(std::size_t bytes) = 0;
    virtual void release() = 0;
  };

  virtual ~Transport() = default;

  /// Never block for long. `bytes` is positive.
  virtual std::unique_ptr<Request> send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) = 0;
  virtual std::unique_ptr<Request> recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) = 0;
  /// `room` has space for `bytes` bytes, for a transport that has no place of its own. What the peer sends to a later
  /// view may not arrive before this one has been read to its end: views of one peer must be read one after the other,
  /// as posted. Receives do not wait for views.
  virtual std::unique_ptr<View> view(int peer, std::uint64_t tag, void* room, std::size_t bytes);
  /// The same on any transport by recv() into `room`, and so without that limit.
  std::unique_ptr<View> buffered_view(int peer, std::uint64_t tag, void* room, std::size_t bytes);
  /// A rank of which a message lies here that nobody has received; -1: none is known. Where sends wait for the receive
  /// there is none.
  virtual int unread() { return -1; }
  /// The same of the collectives up to `number` alone. Cheap.
  virtual int unread_up_to(std::uint64_t /*number*/) { return -1; }
  /// Ends every wait, now and later, with an error, and cuts the connections, so that the peers notice.
  virtual void abort() = 0;
};

}  // namespace lockstep::distributed
