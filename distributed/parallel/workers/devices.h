#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/options.h"
#include "lockstep/distributed/parallel/share_runner.h"
#include "lockstep/distributed/parallel/workers/device_threads.h"
#include "lockstep/distributed/parallel/workers/module_agreement.h"
#include "lockstep/nn/follower.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

/// The workers of a step when they are the devices of this process. One device computes on the module itself. Several
/// have lasting replicas, each computed by a thread of its own, that get the module's values before each step; the
/// first device's replica shares the module's memory (and so its running statistics), but has leaves, and so a graph,
/// of its own. Devices may repeat.
class Devices {
 public:
  using Factory = std::function<std::unique_ptr<nn::Module>()>;

  /// A value that a replica was given: whose, and the versions of both then.
  struct Copied {
    const Storage* storage = nullptr;
    std::uint32_t version = 0;
    std::uint32_t own_version = 0;
  };

  /// The options have been checked; the module lies on the first of the devices and must outlive this object. `factory`
  /// makes the replicas, if there are several devices. Throws Error if it makes modules of another structure.
  Devices(nn::Module& module, const Factory& factory, const TrainingStepOptions& options);

  /// Leaves the gradients of the loss over the batch with the module; returns that loss.
  Tensor step(const data::Batch& batch, std::uint64_t step, const LossFunction& loss);
  /// The module's forward() over all devices, differentiable: see DataParallel. `step` is that of the random keys,
  /// if the caller is not inside of a RandomKeyGuard.
  Tensor forward(const Tensor& x, std::uint64_t step);

  bool is_lockstep() const { return options_.logical_shards != 0; }
  /// Why a step cannot be recorded and replayed; empty if nothing here forbids it.
  std::string capture_obstacle() const;

 private:
  friend struct DevicesBackward;

  bool several() const { return !replicas_.empty(); }
  int count() const { return static_cast<int>(runners_.size()); }
  void for_each(const std::function<void(int)>& body);
  void update_replicas();
  Tensor finish_slices();
  Tensor finish_shards(std::uint64_t step);
  std::vector<double> sum_totals() const;
  /// The replicas' gradients, which it takes away, added up in their order on `device`.
  static std::vector<Tensor> collect_gradients(const std::vector<std::vector<Tensor>>& parameters, Device device);

  nn::Module& module_;
  TrainingStepOptions options_;
  std::vector<std::unique_ptr<nn::Module>> replicas_;  // none if there is one device
  std::vector<nn::detail::Follower> followers_;        // of the module, by replica
  std::vector<std::vector<Tensor>> parameters_;        // by replica
  std::vector<std::vector<Copied>> copied_;            // by replica
  StepTotals layout_;                                  // of the module, for lockstep mode
  std::vector<nn::NamedTensor> trained_;               // the module's parameters, likewise
  FrozenParameters frozen_;                            // the others
  std::vector<std::unique_ptr<ShardSums>> sums_;       // by device, in lockstep mode
  std::vector<ShareRunner> runners_;                   // by device
  std::shared_ptr<DeviceThreads> threads_;
  bool warned_ = false;
};

}  // namespace lockstep::distributed
