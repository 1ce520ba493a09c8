#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/distributed/failure/flight_recorder.h"
#include "lockstep/distributed/failure/peer_monitor.h"
#include "lockstep/distributed/store/store.h"

namespace lockstep::distributed {

/// What a process group does when an operation fails: declares the group dead, once, finds out with the other ranks
/// what has happened (Note [Peer monitor]), reports it if that is this rank's turn, and keeps the error that every
/// operation ends with from then on. Thread-safe.
///
/// A group that was split from another (Note [Split groups]) fails with it: its failure is the parent's too, which
/// reports it and ends what is under way in all groups of the job; and it has failed as soon as its parent has.
class GroupFailure {
 public:
  /// Which rank of which group this is.
  struct Place {
    int rank = 0;
    int world_size = 1;
    std::vector<int> ranks = {};                     ///< the job's numbers of the group's ranks; empty: the same
    std::shared_ptr<GroupFailure> parent = nullptr;  ///< of the group that it was split from
  };

  /// `recorder` is written down after a failure. `timeout` is the deadline of the operations. `store` may be null: then
  /// nobody is asked. `abort_backend` ends what is under way; it is called at most once, from any thread, and not for a
  /// group with a parent, which does it. Nothing is watched before start().
  GroupFailure(const FlightRecorder& recorder, Place place, Milliseconds timeout, StorePtr store,
               std::function<void()> abort_backend);
  ~GroupFailure();
  GroupFailure(const GroupFailure&) = delete;
  GroupFailure& operator=(const GroupFailure&) = delete;

  void start();
  /// Null without a store.
  PeerMonitor* monitor() { return monitor_.get(); }

  /// Returns the error that operations end with; if another thread has declared the failure, what that thread found.
  std::exception_ptr fail(const OperationFailure& failure);
  /// This rank gives the group up, or leaves it by an exception.
  void end_by_own_doing(const std::string& reason);
  /// True from the first moment of a failure.
  bool failing() const;
  /// The error, once it is known.
  std::exception_ptr error() const;
  /// Takes leave: nothing is watched any more when this returns, and a diagnosis that a thread of the monitor is making
  /// has come to its end.
  void stop();

 private:
  ProcessGroupError tell(const OperationFailure& failure);
  ProcessGroupError tell_parent(const OperationFailure& failure);
  void look_for_reports();
  int job_rank(int rank) const;

  const FlightRecorder& recorder_;
  const Place place_;
  Milliseconds timeout_;
  std::function<void()> abort_backend_;
  std::unique_ptr<PeerMonitor> monitor_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool failing_ = false;
  std::exception_ptr failure_;
};

}  // namespace lockstep::distributed
