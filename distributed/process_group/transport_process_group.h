#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/distributed/collectives/collectives.h"
#include "lockstep/distributed/collectives/transport.h"
#include "lockstep/distributed/failure/group_failure.h"
#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// A process group of CPU ranks on a Transport. One thread runs the collectives in order of issue; point-to-point
/// operations have threads of their own, as many as are under way, so that none waits for another.
class TransportProcessGroup : public ProcessGroup {
 public:
  /// `store` is the ranks' common ground for diagnosing failures; it must be scoped to this group.
  TransportProcessGroup(std::string backend, ProcessGroupOptions options, std::unique_ptr<Transport> transport,
                        StorePtr store);
  /// Lets queued operations end (each has its deadline), then leaves the group in good order.
  ~TransportProcessGroup() override;

  std::string_view backend() const override { return backend_; }
  void abort(std::string_view reason) override;
  bool failed() const override;

  // For a group that contains this one and does other devices' operations.

  /// Runs an operation that the other group has validated, numbered, and recorded under `record` by the recorder given
  /// to serve().
  WorkPtr relay(Operation operation, std::uint64_t record) { return launch(std::move(operation), record); }
  /// From now on operations come through relay() and are recorded there; none is under way.
  void serve(FlightRecorder& recorder);
  /// The reverse, before the other group goes.
  void serve_itself();
  /// Of both groups: one failure ends them, and one monitor watches for it.
  GroupFailure& failure() { return failure_; }

 protected:
  WorkPtr launch(Operation operation, std::uint64_t record) override;
  void check_device(const Tensor& tensor, OperationKind kind) const override;
  void step_changed(std::int64_t step) override;

 private:
  struct Task {
    Operation operation;
    std::uint64_t record;
    WorkPtr work;
  };

  void run_collectives();
  void run_point_to_point();
  void run(Task& task);
  void transfer(const Operation& operation, Deadline deadline);

  std::string backend_;
  std::unique_ptr<Transport> transport_;
  Collectives collectives_;
  GroupFailure failure_;
  std::atomic<FlightRecorder*> recorder_in_use_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> collective_tasks_;
  std::deque<Task> point_to_point_tasks_;
  int idle_point_to_point_threads_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::distributed
