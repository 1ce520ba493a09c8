#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/distributed/collectives/shard_tree.h"
#include "lockstep/distributed/nccl/communicator.h"
#include "lockstep/distributed/process_group/executor.h"

namespace lockstep::distributed::nccl {

/// See Note [NCCL executor].
class NcclExecutor final : public Executor {
 public:
  NcclExecutor(ProcessGroup& group, Store& store, Device device);
  ~NcclExecutor() override;

  std::string_view backend() const override { return "nccl"; }
  void check(const Tensor& tensor, OperationKind kind) const override;
  void check_reduction(ReduceOp op, OperationKind kind) const override;
  WorkPtr launch(Operation operation, std::uint64_t record) override;
  std::unique_ptr<Executor> split(const SplitGroup& part) override;
  WorkPtr watch(std::string_view what, const std::function<void()>& launch) override;
  void abort() override;
  void stop() override;

 private:
  class NcclWork;
  struct Pending;

  void throw_if_failed() const;
  void issue(const Operation& operation, std::uint64_t record, bool capturing);
  void issue_on_stream(const Operation& operation);
  void issue_tree(const Operation& operation);
  void issue_tree_by_blocks(const Operation& operation, const std::vector<std::vector<TreeNode>>& nodes);
  void issue_all_to_all(const Operation& operation, ncclComm_t comm);
  void issue_uneven(const Operation& operation, ncclComm_t comm);
  void issue_reductions(const Operation& operation, ncclComm_t comm);
  void issue_rooted(const Operation& operation, ncclComm_t comm);
  void watch_pending();
  bool look_at(Pending& pending);
  Deadline deadline() const;

  const std::shared_ptr<GroupFailure> failure_;
  Device device_;
  cuda::Stream stream_;
  Tensor barrier_value_;
  std::mutex abort_mutex_;  // of abort(), which may find that the communicator has gone
  std::unique_ptr<Communicator> communicator_;
  std::mutex launch_mutex_;
  bool connected_ = false;  // an operation has been issued: NCCL has connected the ranks
  /// What captured operations use: a graph may be launched as long as the group lives.
  std::vector<Tensor> captured_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;
  bool stop_ = false;
  std::thread watchdog_;
};

}  // namespace lockstep::distributed::nccl
