#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "distributed/process_group/operation.h"
#include "distributed/store/store.h"

namespace lockstep::distributed {

/// What a rank was last seen doing, as it publishes it in the store.
struct PeerState {
  std::uint64_t called = 0;       ///< collectives begun; the current one, if running, is number called - 1
  bool running = false;           ///< within that collective now
  std::uint64_t fingerprint = 0;  ///< of that collective
  std::string collective;         ///< its description; empty if there was none yet
  std::string point_to_point;     ///< the last send, recv or exchange begun; empty if none
  bool left = false;              ///< ended in good order
  std::string trouble;            ///< why it gave up; empty if it has not
  std::int64_t since_ms = 0;      ///< when this last changed; wall clock

  std::string encode() const;
  static PeerState decode(std::string_view text);
};

/// Why an operation failed here.
struct Failure {
  std::string operation;  ///< its description; empty if this rank was in none
  std::optional<std::uint64_t> collective;
  std::uint64_t fingerprint = 0;
  std::string cause;
  int peer = -1;  ///< the rank that was waited for, if known
};

/// Note [Peer monitor]
/// Nothing of this is on the path of an operation that succeeds. A thread publishes, every interval, what this rank is
/// doing (one store request, only if that changed), and looks whether some rank has declared a failure. While a
/// collective stalls it reads what the others are doing, and calls a failure when one of them is in another collective
/// under the same number or has left. After a failure every rank that still lives answers with its last state within
/// an interval; who does not answer in time is missing.
/// The interval is a tenth of the deadline, 20 ms to 1 s (a FileStore grows by some 10 MB a day and rank by it);
/// answers are awaited for half the deadline at most, 5 s at most.
class PeerMonitor {
 public:
  /// `on_failure` is called at most once, from the monitor's thread, when another rank has failed or will never come.
  PeerMonitor(StorePtr store, int rank, int world_size, Milliseconds timeout, std::function<void(Failure)> on_failure);
  /// Begins to publish and to watch. Apart from the constructor, so that `on_failure` may use the monitor.
  void start();
  /// Publishes that this rank has left.
  ~PeerMonitor();

  void collective_started(const Operation& operation, std::uint64_t fingerprint);
  void collective_ended();
  void point_to_point_started(const Operation& operation);

  /// Tells the others. The first rank's word stays.
  void announce(const Failure& failure);
  /// Waits for the others' answers, then says in one line what failed, who is missing and where each was last seen.
  std::string diagnose(const Failure& failure);

 private:
  void run();
  bool look_for_failure();
  bool look_for_mismatch();
  PeerState own_state() const;
  void publish_if_changed(Milliseconds timeout);
  std::optional<PeerState> read(const std::string& prefix, int rank);
  std::string where(int rank, const std::optional<PeerState>& state) const;
  /// A cause better than "timed out": a rank that is in another collective or has left. Empty if there is none.
  std::string explain(const Failure& failure, const std::vector<std::optional<PeerState>>& states) const;

  StorePtr store_;
  int rank_;
  int world_size_;
  Milliseconds timeout_;
  Milliseconds interval_;
  Milliseconds request_timeout_;
  std::function<void(Failure)> on_failure_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  PeerState state_;
  std::uint64_t changes_ = 1;    // of state_
  std::uint64_t published_ = 0;  // value of changes_ when last published
  Milliseconds started_at_{0};   // steady clock; of the running collective
  bool stop_ = false;
  bool announced_ = false;
  std::vector<std::optional<PeerState>> last_read_;
  Milliseconds next_mismatch_look_{0};
  std::thread thread_;
};

}  // namespace lockstep::distributed
