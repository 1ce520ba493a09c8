#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/distributed/operation/operation.h"

namespace lockstep::distributed {

/// Moments are readings of std::chrono::steady_clock in nanoseconds; 0 means "not yet".
std::int64_t steady_now_ns();

/// One operation as the recorder saw it.
struct OperationRecord {
  /// What has become of it; `failed` also means that a deadline passed.
  enum class State : std::uint8_t { queued, started, finished, failed };

  std::uint64_t id = 0;          ///< position among all operations of the group on this rank, from 0
  OperationInfo operation;       ///< what it was
  Shape input_sizes;             ///< empty where it had no such tensor
  Shape output_sizes;            ///< of what is written
  State state = State::queued;   ///< at the last change
  std::int64_t queued_ns = 0;    ///< the program called it
  std::int64_t started_ns = 0;   ///< it began to run
  std::int64_t finished_ns = 0;  ///< it ended
};

/// "queued", "started", "finished", "failed".
std::string_view name(OperationRecord::State state);

/// The last operations of a process group, in a ring buffer of fixed size. Thread-safe.
class FlightRecorder {
 public:
  explicit FlightRecorder(std::size_t capacity = 1024, int rank = 0, int world_size = 1);

  int rank() const { return rank_; }              ///< whose operations they are
  int world_size() const { return world_size_; }  ///< number of processes

  /// Records a queued operation; returns its id.
  std::uint64_t queued(const Operation& operation);
  void started(std::uint64_t id);                 ///< the operation `id` runs now
  void finished(std::uint64_t id, bool success);  ///< the operation `id` has ended

  /// Oldest first.
  std::vector<OperationRecord> records() const;

  /// Calls visit(record) on the records, oldest first, without the lock and without allocating: for a signal handler,
  /// after which nothing runs. A record that is being written may be half new.
  template <typename Visit>
  void visit_unlocked(Visit&& visit) const {
    const std::uint64_t end = next_;
    for (std::uint64_t id = end - (end < ring_.size() ? end : ring_.size()); id < end; ++id)
      visit(ring_[id % ring_.size()]);
  }

 private:
  OperationRecord* find(std::uint64_t id);

  mutable std::mutex mutex_;
  std::vector<OperationRecord> ring_;
  std::uint64_t next_ = 0;
  int rank_;
  int world_size_;
};

}  // namespace lockstep::distributed
