#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/distributed/failure/diagnosis.h"
#include "lockstep/distributed/failure/peer_state.h"
#include "lockstep/distributed/operation/operation.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// Note [Peer monitor]
/// Nothing of this is on the path of an operation that succeeds but a lock and a copy of what it is. One thread
/// publishes, every interval, what this rank is doing (one store request, only if that changed). While a collective
/// stalls it reads what the others are doing, and calls a failure when one of them has called another collective under
/// the same number, now or earlier, or has left. Another thread waits in the store to be woken: who fails writes down
/// its last state and why, then wakes all others, which answer with their last states at once. Who does not answer is
/// missing; where /proc shows that its process is gone or stopped, nobody waits for its answer.
///
/// The lowest rank that lives tells the whole story, once, as an error in the log; each rank's operations end with one
/// sentence.
///
/// A rank that ends by itself says so where it can: when its group goes, when an exception takes the group down or ends
/// the process, and in exit().
///
/// The interval is a tenth of the deadline, 20 ms to 1 s (a FileStore grows by some 10 MB a day and rank by it);
/// answers are awaited for a quarter of the deadline, 1.5 s at most.
class PeerMonitor {
 public:
  /// `on_failure` is called at most once, from a thread of the monitor, when another rank has failed or will never
  /// come. Of a group that was split from another: `ranks`, by rank, the job's number, which messages name, and
  /// `parent`, the other group's monitor, which outlives this one and learns where the rank is. Empty and null: of the
  /// job's group.
  PeerMonitor(StorePtr store, int rank, int world_size, Milliseconds timeout,
              std::function<void(OperationFailure)> on_failure, std::vector<int> ranks = {},
              PeerMonitor* parent = nullptr);
  /// Begins to publish and to watch. Apart from the constructor, so that `on_failure` may use the monitor.
  void start();
  /// Publishes that this rank has left, and waits for the monitor's threads. Further calls do nothing.
  void stop();
  /// Stops it.
  ~PeerMonitor();

  void collective_started(const OperationInfo& operation, std::uint64_t fingerprint);
  void collective_ended();
  void point_to_point_started(const OperationInfo& operation);
  void set_step(std::int64_t step);
  /// What a step of this rank has ended with; forgotten when collective `next` of this group, or a later one, has
  /// ended. kUnknownException replaces nothing that is known.
  void set_exception(std::string_view what, std::uint64_t next);
  /// That, here or in the group that this one was split from; empty: none.
  std::string exception() const;
  /// This rank ends by its own doing: "threw: ...". To be announced or published afterwards.
  void set_ended_by(std::string_view reason);

  /// Empty unless this process was stopped a while ago for longer than other work explains; else says so, with "; ".
  std::string standstill();
  /// How long ago this rank's last collective ended; the longest time there is if it is in one, or there was none.
  Milliseconds since_last_collective() const;

  /// What another rank has announced, if one has and the store answers.
  std::optional<OperationFailure> reported_failure();
  /// Tells the others. The first rank's word stays.
  void announce(const OperationFailure& failure);
  /// What this rank's own operation says while a failure is told already: whom it has waited for.
  void add_own_word(const OperationFailure& failure);
  /// Waits for the others' answers.
  Diagnosis diagnose(const OperationFailure& failure);
  /// True on one rank: the one that is to tell the whole story.
  bool is_reporter(const OperationFailure& failure, const Diagnosis& diagnosis);
  /// Another rank that tells it; -1 if that cannot be known, because the store is lost.
  int reporter(const Diagnosis& diagnosis) const;

  /// For the end of the process: publishes at once that this rank has left, and why; a failure is announced as well.
  void leave_now(std::string_view reason, bool is_failure);

 private:
  /// A collective that this rank has begun.
  struct Call {
    OperationInfo operation;
    std::uint64_t fingerprint = 0;
  };
  static constexpr std::size_t kCalls = 16;

  void publish_and_look();
  void wait_to_be_woken();
  std::optional<OperationFailure> read_failure();
  static bool is_word_missing(const std::vector<Observation>& seen);
  bool look_for_failure();
  bool look_for_mismatch();
  std::string difference(int rank, const PeerState& other) const;
  const Call* call_of(std::uint64_t number) const;
  void read_identities();
  void refresh_one();
  void tell(const OperationFailure& failure);
  int rank_in(const std::string& text) const;
  void part_started(const PeerMonitor& part, const OperationInfo& operation);
  void part_ended(const PeerMonitor& part);
  void forget_exception();
  std::uint64_t begun() const;
  PeerState own_state() const;
  void publish_if_changed(Milliseconds timeout);
  static std::string rank_key(const char* prefix, int rank);
  std::optional<PeerState> read(const char* prefix, int rank);
  int job_rank(int rank) const { return ranks_.empty() ? rank : ranks_[static_cast<std::size_t>(rank)]; }
  std::int64_t now_ms() const;
  bool stopping() const;
  bool watching() const;
  void note_standstill();
  Milliseconds pause() const;
  std::string store_error() const;
  void give_up_store(std::string_view error);

  StorePtr store_;
  int rank_;
  int world_size_;
  std::vector<int> ranks_;
  PeerMonitor* parent_;
  Milliseconds timeout_;
  Milliseconds interval_;
  Milliseconds request_timeout_;
  std::function<void(OperationFailure)> on_failure_;
  /// A group's monitors begin as soon as its ranks have met, so times since then compare between machines, whose wall
  /// clocks may differ.
  Deadline began_ = std::chrono::steady_clock::now();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  PeerState state_;                                // without its descriptions
  std::array<std::optional<Call>, kCalls> calls_;  // the last ones, by number
  OperationInfo point_to_point_;
  bool has_point_to_point_ = false;
  std::uint64_t exception_until_ = 0;          // the collective that ends the memory of state_.exception
  OperationInfo elsewhere_;                    // of a group that was split from this one
  const PeerMonitor* elsewhere_of_ = nullptr;  // that group's; null: this rank is in none
  std::uint64_t changes_ = 1;                  // of state_
  std::uint64_t published_ = 0;                // value of changes_ when last published
  Milliseconds started_at_{0};                 // steady clock; of the running collective
  bool stop_ = false;
  bool announced_ = false;
  bool store_lost_ = false;  // the publisher's last request has failed
  std::string store_error_;  // of a request after a failure; not empty: nobody waits for the store any more
  std::vector<std::optional<PeerState>> last_read_;
  std::atomic<bool> identities_read_ = false;
  int early_looks_ = 0;                                          // for identities
  std::pair<Milliseconds, Milliseconds> stood_still_{0, 0};      // for how long, and until when by the steady clock
  std::optional<std::pair<Milliseconds, Milliseconds>> sleeps_;  // since when, and for how long it means to
  int next_refresh_ = 0;
  Milliseconds next_mismatch_look_{0};
  std::atomic<bool> told_ = false;
  std::thread publisher_;
  std::thread watcher_;
};

}  // namespace lockstep::distributed
