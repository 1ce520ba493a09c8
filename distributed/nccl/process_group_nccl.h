#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/core/cuda/stream.h"
#include "lockstep/distributed/failure/group_failure.h"
#include "lockstep/distributed/nccl/communicator.h"
#include "lockstep/distributed/process_group/process_group.h"
#include "lockstep/distributed/process_group/transport_process_group.h"

namespace lockstep::distributed::nccl {

/// See Note [NCCL process group].
class NcclProcessGroup final : public ProcessGroup {
 public:
  NcclProcessGroup(const StorePtr& store, const ProcessGroupOptions& options, Device device,
                   std::shared_ptr<TransportProcessGroup> cpu);
  ~NcclProcessGroup() override;

  std::string_view backend() const override { return "nccl"; }
  void abort(std::string_view reason) override;
  bool failed() const override { return cpu_->failure().failing(); }
  WorkPtr watch(std::string_view what) override;

 protected:
  WorkPtr launch(Operation operation, std::uint64_t record) override;
  void check_device(const Tensor& tensor, OperationKind kind) const override;
  void step_changed(std::int64_t step) override;

 private:
  class NcclWork;
  struct Pending;

  void issue_on_stream(const Operation& operation);
  void issue_tree(const Operation& operation);
  void issue_all_to_all(const Operation& operation, ncclComm_t comm);
  void issue_rooted(const Operation& operation, ncclComm_t comm);
  void watch_pending();
  bool look_at(Pending& pending);
  Deadline deadline() const;

  Device device_;
  std::shared_ptr<TransportProcessGroup> cpu_;
  cuda::Stream stream_;
  Tensor barrier_value_;
  std::unique_ptr<Communicator> communicator_;
  std::mutex launch_mutex_;
  /// What captured operations use: a graph may be launched as long as this group lives.
  std::vector<Tensor> captured_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Pending> pending_;
  bool stop_ = false;
  std::thread watchdog_;
};

}  // namespace lockstep::distributed::nccl
