#pragma once

#include <condition_variable>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/distributed/collectives/collectives.h"
#include "lockstep/distributed/collectives/transport.h"
#include "lockstep/distributed/process_group/executor.h"

namespace lockstep::distributed {

/// Runs operations on CPU tensors over a Transport. One thread runs the collectives in order of issue; point-to-point
/// operations have threads of their own, as many as are under way, so that none waits for another. Those that find
/// nothing to do for a while end.
class TransportExecutor : public Executor {
 public:
  /// `group` has a failure().
  TransportExecutor(ProcessGroup& group, std::string backend, std::shared_ptr<Transport> transport);
  ~TransportExecutor() override { TransportExecutor::stop(); }

  std::string_view backend() const override { return backend_; }
  void check(const Tensor& tensor, OperationKind kind) const override;
  WorkPtr launch(Operation operation, std::uint64_t record) override;
  std::unique_ptr<Executor> split(const SplitGroup& part) override;
  void abort() override { transport_->abort(); }
  void stop() override;

 private:
  class QueuedWork;
  struct Task {
    Operation operation;
    std::uint64_t record;
    std::shared_ptr<QueuedWork> work;
  };

  void run_collectives();
  void run_point_to_point();
  void run(Task& task);
  struct Letter;
  void transfer(const Operation& operation, Deadline deadline);
  [[noreturn]] void throw_mismatch(const Operation& operation, const Letter& sent, const Letter& expected) const;
  int rank_of(int job_rank) const;
  void warn_of_unread();

  std::string backend_;
  std::shared_ptr<Transport> transport_;  // split groups use it too
  Collectives collectives_;
  std::uint64_t history_ = 0;  // of the collectives run; their thread's
  GroupFailure& failure_;

  std::mutex mutex_;
  std::condition_variable collective_came_, point_to_point_came_;
  std::deque<Task> collective_tasks_;
  std::deque<Task> point_to_point_tasks_;
  int idle_point_to_point_threads_ = 0;
  bool stop_ = false;
  std::thread collective_thread_;
  std::list<std::thread> point_to_point_threads_;
  std::list<std::thread> ended_;  // of these, to be joined
};

/// A process group of CPU ranks on a Transport; `store` as ProcessGroup has it.
ProcessGroupPtr make_transport_group(std::string backend, const ProcessGroupOptions& options,
                                     std::unique_ptr<Transport> transport, StorePtr store);

}  // namespace lockstep::distributed
