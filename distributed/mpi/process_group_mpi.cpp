#include <mpi.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "lockstep/core/check.h"
#include "lockstep/distributed/collectives/transport.h"
#include "lockstep/distributed/mpi/mpi.h"
#include "lockstep/distributed/process_group/meeting.h"
#include "lockstep/distributed/process_group/transport_executor.h"
#include "lockstep/distributed/store/prefix_store.h"

namespace lockstep::distributed::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// One message of MPI's at most; its counts are ints.
constexpr std::size_t kMessageBytes = std::size_t{1} << 30;
// Up to this size a message is copied behind its tag; the tag of a larger one is a message of its own.
constexpr std::size_t kSmallBytes = 4096;
// How long a wait only gives the core away between its looks, before it sleeps between them.
constexpr std::chrono::microseconds kPatience{100};
constexpr std::chrono::microseconds kLongestNap{500};

/// MPI's calls of all threads, one at a time: then MPI_THREAD_SERIALIZED is enough.
std::mutex& mpi_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// Set once a group has failed: then MPI_Finalize would wait for ranks that do not come.
std::atomic<bool> failed = false;

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  LOCKSTEP_CHECK(false, "[mpi] {} failed: {}", what, text.data());
}

/// Note [MPI]
/// MPI moves bytes for us, as Gloo does, on a communicator of this group's own; the collectives are ours.
/// - Tags here have 64 bits, and MPI's 15 at least, 22 or 31 as a rule; ours are folded to that. Two messages under one
///   folded tag are met in the order of their sends, which is that of the receives within a group's collectives. For
///   the others the whole tag travels along, in front of a small message and behind a large one, and a receive that has
///   met another operation's message is an error.
/// - MPI has no deadlines: a wait looks, and sleeps longer and longer between its looks.
/// - An MPI launcher ends all ranks when one has died.
class MpiTransport final : public Transport {
 public:
  MpiTransport() {
    check(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "MPI_Comm_dup");
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    void* limit = nullptr;
    int found = 0;
    MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &limit, &found);
    if (found) tag_limit_ = static_cast<std::uint64_t>(*static_cast<int*>(limit));
  }

  std::unique_ptr<Request> send(int peer, std::uint64_t tag, const void* data, std::size_t bytes) override {
    return start(peer, tag, const_cast<void*>(data), bytes, true);
  }
  std::unique_ptr<Request> recv(int peer, std::uint64_t tag, void* data, std::size_t bytes) override {
    return start(peer, tag, data, bytes, false);
  }
  void abort() override { failed = aborted_ = true; }

 private:
  class MpiRequest final : public Request {
   public:
    MpiRequest(const MpiTransport& transport, int peer, bool sends)
        : transport_(transport), peer_(peer), sends_(sends) {}

    ~MpiRequest() override {
      if (parts_.empty()) return;
      const std::lock_guard lock(mpi_mutex());
      for (MPI_Request& part : parts_) {
        if (part == MPI_REQUEST_NULL) continue;
        if (!sends_) MPI_Cancel(&part);
        MPI_Request_free(&part);
      }
    }

    /// Under one lock, so that what belongs together is met together.
    void start(std::uint64_t tag, std::byte* data, std::size_t bytes) {
      const std::lock_guard lock(mpi_mutex());
      const int folded = static_cast<int>(tag % transport_.tag_limit_);
      tag_ = tag;
      if (sends_) met_ = tag;
      if (bytes <= kSmallBytes) {
        data_ = data;
        small_.resize(sizeof tag + bytes);
        if (sends_) std::memcpy(small_.data(), &tag, sizeof tag);
        if (sends_) std::memcpy(small_.data() + sizeof tag, data, bytes);
        return post(folded, small_.data(), small_.size());
      }
      for (std::size_t at = 0; at < bytes; at += kMessageBytes)
        post(folded, data + at, std::min(kMessageBytes, bytes - at));
      post(folded, &met_, sizeof met_);
    }

    void wait(Deadline deadline) override {
      const auto start = Clock::now();
      std::chrono::microseconds nap{10};
      while (!ended()) {
        if (transport_.aborted_) throw TransportError(peer_, "the group was aborted");
        const auto now = Clock::now();
        if (now >= deadline) throw TransportError(peer_, fmt::format("timed out waiting for rank {}", peer_));
        if (now - start < kPatience) {
          sched_yield();
        } else {
          std::this_thread::sleep_for(nap);
          nap = std::min(nap * 2, kLongestNap);
        }
      }
    }

   private:
    void post(int tag, void* data, std::size_t bytes) {
      const int count = static_cast<int>(bytes);
      MPI_Request part = MPI_REQUEST_NULL;
      check_part(sends_ ? MPI_Isend(data, count, MPI_BYTE, peer_, tag, transport_.communicator_, &part)
                        : MPI_Irecv(data, count, MPI_BYTE, peer_, tag, transport_.communicator_, &part));
      parts_.push_back(part);
    }

    bool ended() {
      const std::lock_guard lock(mpi_mutex());
      int done = 1;
      for (MPI_Request& part : parts_) {
        if (done && part != MPI_REQUEST_NULL) check_part(MPI_Test(&part, &done, MPI_STATUS_IGNORE));
      }
      if (done != 0 && !sends_) take();
      return done != 0;
    }

    void take() {
      if (!small_.empty()) std::memcpy(&met_, small_.data(), sizeof met_);
      if (met_ != tag_)
        throw TransportError(peer_,
                             fmt::format("two operations with rank {} have met under one of MPI's tags, of which "
                                         "there are {}; use another backend",
                                         peer_, transport_.tag_limit_));
      if (!small_.empty()) std::memcpy(data_, small_.data() + sizeof met_, small_.size() - sizeof met_);
      small_.clear();
    }

    void check_part(int code) const {
      try {
        check(code, sends_ ? "sending" : "receiving");
      } catch (const Error& error) {
        throw TransportError(peer_, fmt::format("the connection to rank {} is lost ({})", peer_, error.what()));
      }
    }

    const MpiTransport& transport_;
    int peer_;
    bool sends_;
    std::uint64_t tag_ = 0, met_ = 0;  // its own, and that of the message which has come
    std::byte* data_ = nullptr;        // of a small message
    std::vector<std::byte> small_;     // with its tag in front
    std::vector<MPI_Request> parts_;
  };

  std::unique_ptr<Request> start(int peer, std::uint64_t tag, void* data, std::size_t bytes, bool sends) {
    if (aborted_) throw TransportError(peer, "the group was aborted");
    auto request = std::make_unique<MpiRequest>(*this, peer, sends);
    request->start(tag, static_cast<std::byte*>(data), bytes);
    return request;
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  std::uint64_t tag_limit_ = 32767;  // what the standard promises
  std::atomic<bool> aborted_ = false;
};

void end_mpi() {
  int ended = 0;
  MPI_Finalized(&ended);
  if (!ended && !failed) MPI_Finalize();
}

void start_mpi() {
  const std::lock_guard lock(mpi_mutex());
  int started = 0, ended = 0, threads = MPI_THREAD_SINGLE;
  MPI_Initialized(&started);
  MPI_Finalized(&ended);
  LOCKSTEP_CHECK(!ended, "[mpi] MPI has been finalized in this process; make the group before that");
  if (started) {
    MPI_Query_thread(&threads);
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads), "MPI_Init_thread");
    std::atexit(end_mpi);
  }
  LOCKSTEP_CHECK(threads >= MPI_THREAD_SERIALIZED,
                 "[mpi] MPI was initialised for one thread; initialise it with MPI_THREAD_MULTIPLE, or leave it to "
                 "lockstep");
}

bool is_started_by_mpi() {
  int started = 0;
  MPI_Initialized(&started);
  if (started) return true;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (std::getenv(name)) return true;
  return false;
}

}  // namespace

bool is_available() {
  return true;
}

ProcessGroupPtr make_process_group(const StorePtr& store, const ProcessGroupOptions& group) {
  LOCKSTEP_CHECK(store, "[mpi] needs a store to meet the other ranks; found none");
  LOCKSTEP_CHECK(is_started_by_mpi(),
                 "[mpi] this process was not started by MPI; start the job as mpirun -n {} PROGRAM, or use another "
                 "backend",
                 group.world_size);
  // MPI's own start has no deadline, so all must be here.
  meet(*store, group, "mpi");
  start_mpi();
  int rank = -1, world_size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world_size);
  LOCKSTEP_CHECK(
      rank == group.rank && world_size == group.world_size,
      "[mpi] this is rank {} of {} to MPI, and rank {} of {} to the job; start all processes of the job with "
      "one mpirun, and unset RANK and WORLD_SIZE",
      rank, world_size, group.rank, group.world_size);
  return make_transport_group("mpi", group, std::make_unique<MpiTransport>(),
                              std::make_shared<PrefixStore>("monitor", store));
}

}  // namespace lockstep::distributed::mpi
