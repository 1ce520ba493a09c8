#include "lockstep/distributed/mpi/mpi_transport.h"

#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <list>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/distributed/mpi/communicator.h"

namespace lockstep::distributed::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// One message of MPI's at most; its counts are ints.
constexpr std::size_t kMessageBytes = std::size_t{1} << 30;
// Up to this size a message travels in its letter.
constexpr std::size_t kSmallBytes = 4096;
// How long a wait only gives the core away between its looks, before it sleeps between them.
constexpr std::chrono::microseconds kPatience{100};
constexpr std::chrono::microseconds kLongestNap{500};
// How long, after a failure, memory that MPI may still write to is kept back from its owner.
constexpr Milliseconds kFarewell{1'000};

std::atomic<bool> aborted_once = false;

/// Note [MPI messages]
/// Tags here have 64 bits, and MPI's 15 at least, 22 or 31 as a rule; ours are folded to that. Messages under one
/// folded tag meet in the order of sends and receives, which need not be the same, and so a receive may meet what is
/// not its own. That must not happen to the memory that the caller has lent: a message longer than the receive that it
/// meets is an error by the standard, but Open MPI 4.1 writes all of it, past the end, if it is longer than 4 KiB and
/// both ranks are on one machine.
///
/// So every message begins with a letter that has the whole tag, and is received into memory of this transport's, in
/// which any letter has room. A letter goes to the receive that has its tag, whichever it has met; if there is none
/// yet, it is kept. A small message is in its letter. Of a large one the letter says under which number it comes, on
/// another communicator, and its receive is posted when the letter is there. A number belongs to one message between
/// two ranks, until all of MPI's tags have been used.
struct Header {
  std::uint64_t tag = 0;
  std::uint64_t bytes = 0;   // of the message
  std::uint64_t number = 0;  // of a large message
};

struct Letter {
  Header header;
  std::array<std::byte, kSmallBytes> content;  // of a small message
};
using LetterPtr = std::unique_ptr<Letter>;

class MpiTransport final : public Transport {
 public:
  MpiTransport(Deadline deadline, std::uint64_t tags)
      : letters_(new_communicator(deadline)), parcels_(new_communicator(deadline)) {
    const std::lock_guard lock(mpi_mutex());
    void* limit = nullptr;
    int found = 0, world_size = 0;
    MPI_Comm_get_attr(letters_, MPI_TAG_UB, &limit, &found);
    if (found) numbers_ = static_cast<std::uint64_t>(*static_cast<int*>(limit));
    tags_ = tags > 0 ? std::min(tags, numbers_) : numbers_;
    MPI_Comm_size(letters_, &world_size);
    next_number_.resize(static_cast<std::size_t>(world_size));
  }
  ~MpiTransport() override;

  std::unique_ptr<Request> send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    return start<Send>(peer, tag, static_cast<std::byte*>(const_cast<void*>(data)), bytes);
  }
  std::unique_ptr<Request> recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    return start<Receive>(peer, tag, static_cast<std::byte*>(data), bytes);
  }
  void abort() override { aborted_once = aborted_ = true; }

 private:
  /// What a send and a receive have in common. All but wait() is called under the mutex.
  class Message : public Request {
   public:
    Message(MpiTransport& transport, int peer, std::uint64_t tag, std::byte* data, std::size_t bytes)
        : transport_(transport), peer_(peer), tag_(tag), data_(data), bytes_(bytes) {}

    void wait(Deadline deadline) override {
      const auto start = Clock::now();
      std::chrono::microseconds nap{10};
      for (;;) {
        {
          const std::lock_guard lock(mpi_mutex());
          if (transport_.aborted_) throw TransportError(peer_, "the group was aborted");
          if (has_ended()) return;
        }
        const auto now = Clock::now();
        if (now >= deadline)
          throw TransportError(peer_, fmt::format("timed out waiting for rank {}", peer_), Way::network);
        if (now - start < kPatience) {
          sched_yield();
        } else {
          std::this_thread::sleep_for(nap);
          nap = std::min(nap * 2, kLongestNap);
        }
      }
    }

   protected:
    virtual bool has_ended() = 0;

    bool is_small() const { return bytes_ <= kSmallBytes; }

    void post_parcel(std::uint64_t number, bool sends) {
      for (std::size_t at = 0; at < bytes_; at += kMessageBytes) {
        const int count = static_cast<int>(std::min(kMessageBytes, bytes_ - at)), tag = static_cast<int>(number);
        MPI_Request part = MPI_REQUEST_NULL;
        check_of(peer_, sends ? MPI_Isend(data_ + at, count, MPI_BYTE, peer_, tag, transport_.parcels_, &part)
                              : MPI_Irecv(data_ + at, count, MPI_BYTE, peer_, tag, transport_.parcels_, &part));
        parts_.push_back(part);
      }
    }

    bool parcel_has_ended() {
      for (MPI_Request& part : parts_)
        if (!is_done(peer_, part)) return false;
      return true;
    }

    /// The caller takes the parcel's memory back, whatever has become of it.
    void leave_parcel(bool sends) {
      for (MPI_Request& part : parts_) {
        if (part == MPI_REQUEST_NULL) continue;
        if (!sends) MPI_Cancel(&part);
        // A receive that nothing has met ends at once; another with the bytes that are on their way. What a send still
        // gives is read by nobody: the group has failed.
        int done = 0;
        while (MPI_Test(&part, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done && !sends &&
               transport_.may_still_wait())
          sched_yield();
        if (!done && part != MPI_REQUEST_NULL) MPI_Request_free(&part);
      }
    }

    MpiTransport& transport_;
    int peer_;
    std::uint64_t tag_;
    std::byte* data_;
    std::size_t bytes_;
    std::vector<MPI_Request> parts_;  // of the parcel
  };

  class Send final : public Message {
   public:
    using Message::Message;

    ~Send() override {
      const std::lock_guard lock(mpi_mutex());
      if (request_ != MPI_REQUEST_NULL) transport_.abandoned_.push_back({request_, std::move(letter_)});
      leave_parcel(true);
    }

    void start() {
      letter_ = transport_.blank_letter();
      letter_->header = {.tag = tag_, .bytes = bytes_, .number = 0};
      if (is_small()) {
        std::memcpy(letter_->content.data(), data_, bytes_);
      } else {
        std::uint64_t& next = transport_.next_number_[static_cast<std::size_t>(peer_)];
        letter_->header.number = next;
        next = (next + 1) % transport_.numbers_;
      }
      const std::size_t length = sizeof(Header) + (is_small() ? bytes_ : 0);
      check_of(peer_, MPI_Isend(letter_.get(), static_cast<int>(length), MPI_BYTE, peer_, transport_.folded(tag_),
                                transport_.letters_, &request_));
      if (!is_small()) post_parcel(letter_->header.number, true);
    }

    bool has_ended() override {
      if (!is_done(peer_, request_)) return false;
      if (letter_) transport_.blank_.push_back(std::move(letter_));
      letter_.reset();
      return parcel_has_ended();
    }

   private:
    MPI_Request request_ = MPI_REQUEST_NULL;  // of the letter
    LetterPtr letter_;
  };

  class Receive final : public Message {
   public:
    using Message::Message;

    ~Receive() override {
      const std::lock_guard lock(mpi_mutex());
      std::erase(transport_.waiting_, this);
      leave_parcel(false);
    }

    void start() { transport_.expect(*this); }

    bool meets(int peer, std::uint64_t tag) const { return peer == peer_ && tag == tag_; }
    bool is_under(int peer, int folded) const { return peer == peer_ && folded == transport_.folded(tag_); }
    int peer() const { return peer_; }
    std::uint64_t tag() const { return tag_; }

    void take(const Letter& letter) {
      if (letter.header.bytes != bytes_)
        throw TransportError(
            peer_, fmt::format("rank {} has sent {} bytes where {} were expected", peer_, letter.header.bytes, bytes_));
      if (is_small()) {
        std::memcpy(data_, letter.content.data(), bytes_);
      } else {
        post_parcel(letter.header.number, false);
      }
      has_letter_ = true;
    }

    bool has_ended() override {
      if (!has_letter_) transport_.look_for_letters();
      return has_letter_ && parcel_has_ended();
    }

   private:
    bool has_letter_ = false;
  };

  /// Where the next letter under a folded tag will be.
  struct Slot {
    int peer;
    int folded;
    MPI_Request request;
    LetterPtr letter;
  };
  struct Kept {
    int peer;
    LetterPtr letter;
  };
  struct Abandoned {
    MPI_Request request;
    LetterPtr letter;
  };

  static void check_of(int peer, int code) {
    try {
      check_mpi(code, "a message");
    } catch (const Error& error) {
      throw TransportError(peer, fmt::format("the connection to rank {} is lost ({})", peer, error.what()),
                           Way::network);
    }
  }

  static bool is_done(int peer, MPI_Request& request) {
    if (request == MPI_REQUEST_NULL) return true;
    int done = 0;
    check_of(peer, MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    return done != 0;
  }

  template <typename M>
  std::unique_ptr<Request> start(int peer, std::uint64_t tag, std::byte* data, std::size_t bytes) {
    auto message = std::make_unique<M>(*this, peer, tag, data, bytes);
    const std::lock_guard lock(mpi_mutex());
    if (aborted_) throw TransportError(peer, "the group was aborted");
    message->start();
    return message;
  }

  int folded(std::uint64_t tag) const { return static_cast<int>(tag % tags_); }

  LetterPtr blank_letter() {
    if (blank_.empty()) return std::make_unique_for_overwrite<Letter>();
    LetterPtr letter = std::move(blank_.back());
    blank_.pop_back();
    return letter;
  }

  void expect(Receive& receive) {
    const auto kept =
        std::ranges::find_if(kept_, [&](const Kept& k) { return receive.meets(k.peer, k.letter->header.tag); });
    if (kept != kept_.end()) {
      receive.take(*kept->letter);
      blank_.push_back(std::move(kept->letter));
      kept_.erase(kept);
      return;
    }
    waiting_.push_back(&receive);
    fill_slots(receive.peer(), folded(receive.tag()));
  }

  /// As many slots as receives wait under a folded tag, and more where one has gone or was met from the letters kept.
  void fill_slots(int peer, int folded) {
    const auto wait = std::ranges::count_if(waiting_, [&](const Receive* r) { return r->is_under(peer, folded); });
    auto there = std::ranges::count_if(slots_, [&](const Slot& s) { return s.peer == peer && s.folded == folded; });
    for (; there < wait; ++there) {
      Slot slot{peer, folded, MPI_REQUEST_NULL, blank_letter()};
      check_of(peer, MPI_Irecv(slot.letter.get(), sizeof(Letter), MPI_BYTE, peer, folded, letters_, &slot.request));
      slots_.push_back(std::move(slot));
    }
  }

  /// Hands out what has come. Under one folded tag letters are read in the order in which they were sent.
  void look_for_letters() {
    std::vector<std::pair<int, int>> not_yet;
    for (auto slot = slots_.begin(); slot != slots_.end();) {
      const std::pair under{slot->peer, slot->folded};
      if (std::ranges::find(not_yet, under) != not_yet.end() || !is_done(slot->peer, slot->request)) {
        not_yet.push_back(under);
        ++slot;
        continue;
      }
      LetterPtr letter = std::move(slot->letter);
      slot = slots_.erase(slot);
      hand_out(under.first, std::move(letter));
      fill_slots(under.first, under.second);
    }
  }

  void hand_out(int peer, LetterPtr letter) {
    const auto receive =
        std::ranges::find_if(waiting_, [&](const Receive* r) { return r->meets(peer, letter->header.tag); });
    if (receive == waiting_.end()) {
      kept_.push_back({peer, std::move(letter)});
      return;
    }
    Receive& found = **receive;
    waiting_.erase(receive);
    found.take(*letter);
    blank_.push_back(std::move(letter));
  }

  /// For all that is given back after a failure together.
  bool may_still_wait() {
    const auto now = Clock::now();
    if (farewell_ == Clock::time_point{}) farewell_ = now + kFarewell;
    return now < farewell_;
  }

  const MPI_Comm letters_, parcels_;
  std::uint64_t tags_ = 0;                  // of letters
  std::uint64_t numbers_ = 32767;           // of large messages; what the standard promises
  std::vector<std::uint64_t> next_number_;  // by peer
  std::list<Slot> slots_;                   // in the order of MPI's receives
  std::vector<Receive*> waiting_;           // for letters, in the order of their start
  std::list<Kept> kept_;                    // that nobody has asked for yet, in the order of their sends
  std::vector<Abandoned> abandoned_;        // sends that were given up
  std::vector<LetterPtr> blank_;            // to use again
  std::atomic<bool> aborted_ = false;
  Clock::time_point farewell_{};
};

MpiTransport::~MpiTransport() {
  const std::lock_guard lock(mpi_mutex());
  int ended = 0;
  MPI_Finalized(&ended);
  for (Slot& slot : slots_) {
    if (!ended) MPI_Cancel(&slot.request);
    abandoned_.push_back({slot.request, std::move(slot.letter)});
  }
  for (Abandoned& one : abandoned_) {
    int done = 0;
    if (!ended) MPI_Test(&one.request, &done, MPI_STATUS_IGNORE);
    if (!done) static_cast<void>(one.letter.release());  // MPI's from now on
  }
}

}  // namespace

bool any_aborted() {
  return aborted_once;
}

std::unique_ptr<Transport> make_mpi_transport(Deadline deadline, std::uint64_t tags) {
  return std::make_unique<MpiTransport>(deadline, tags);
}

}  // namespace lockstep::distributed::mpi
