#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "lockstep/distributed/process_group/process_group.h"

namespace lockstep::distributed {

/// A group of some of a group's ranks; see ProcessGroup::split().
struct SplitGroup {
  ProcessGroup& group;
  const std::vector<int>& members;  ///< by rank in it, the rank in the group that it was split from
  std::uint64_t number;             ///< of the split: the n-th of the group that it was split from
  StorePtr store;                   ///< empty of keys of others; null if the group has none
};

/// What runs a process group's operations on one type of device. The group validates, numbers and records an operation
/// and then hands it over; the recorder and the failure are the group's, one for all of its executors.
class Executor {
 public:
  /// For `group`, which takes it with ProcessGroup::add() and outlives it.
  explicit Executor(ProcessGroup& group) : group_(group) {}
  virtual ~Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// "gloo", "nccl", ...
  virtual std::string_view backend() const = 0;
  /// Throws Error unless the tensor can take part in such an operation. Also asked about tensors on types of device
  /// that the group has no executor for.
  virtual void check(const Tensor& tensor, OperationKind kind) const = 0;
  /// Throws Error unless it can reduce so.
  virtual void check_reduction(ReduceOp, OperationKind) const {}
  /// Runs a validated operation in the background. `record` is its id in the group's recorder.
  virtual WorkPtr launch(Operation operation, std::uint64_t record) = 0;
  /// An executor of the same kind for a group that was split from this one's; the ranks of that group call it together.
  virtual std::unique_ptr<Executor> split(const SplitGroup& part) = 0;
  /// See ProcessGroup::watch().
  virtual WorkPtr watch(std::string_view, const std::function<void()>& launch) {
    launch();
    return nullptr;
  }
  /// The group has failed: ends what is under way. From any thread, until the destructor; may be called again.
  virtual void abort() {}
  /// Lets what was launched end (each operation has its deadline), and the threads with it. Nothing is launched any
  /// more; may be called again, as destructors do.
  virtual void stop() {}

 protected:
  ProcessGroup& group_;
};

}  // namespace lockstep::distributed
