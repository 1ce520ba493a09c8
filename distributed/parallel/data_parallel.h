#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/core/device.h"
#include "lockstep/core/tensor.h"
#include "lockstep/data/dataset.h"
#include "lockstep/distributed/parallel/loss_value.h"
#include "lockstep/nn/module.h"

namespace lockstep::distributed {

class DeviceThreads;
class LockstepStep;

/// Options of DataParallel.
struct DataParallelOptions {
  /// V, a power of two and at least the number of devices: lockstep mode (docs/lockstep.md), in which step() gives the
  /// same bits on every number of devices. 0: off.
  std::int64_t logical_shards = 0;
  /// step() computes each device's part in so many slices, one after the other (Note [Accumulation]). Lockstep mode
  /// does so by itself; 1 there.
  std::int64_t accumulate = 1;
};

/// Trains one module on several devices of this process: scatters the batch along dimension 0, runs one lasting replica
/// a device, each on a thread of its own, gathers the outputs, and adds the replicas' gradients onto the module's.
/// Semantics of torch.nn.DataParallel, but replicas are made once: before each forward they get the module's values.
/// Devices may repeat.
///
/// The module trained, saved and given to the optimizer is module(). The first device's replica shares its memory (and
/// so its running statistics), but has leaves, and so a graph, of its own. Samples divide by data::partition, so sizes
/// differ by at most one; devices beyond the batch stay idle. Randomness differs by replica: replica i draws as shard i
/// of the step.
class DataParallel {
 public:
  /// Makes one module; called several times, it must make equal structures.
  using Factory = std::function<std::unique_ptr<nn::Module>()>;
  /// Returns the mean loss over the samples of the part, as a one-element tensor, or a sum and its count. Called on
  /// several threads at once, with that thread's replica; in lockstep mode once for each logical shard.
  using LossFunction = std::function<LossValue(nn::Module& replica, const data::Batch& part)>;

  /// Calls `factory` once for the module and once for each device. Throws Error if `devices` is empty or the modules
  /// differ in structure.
  DataParallel(const Factory& factory, std::vector<Device> devices, DataParallelOptions options = {});
  ~DataParallel();
  DataParallel(DataParallel&&) noexcept;

  /// The module's forward() over all devices; the result is on the first. Differentiable: backward() runs the replicas'
  /// backward passes side by side. In lockstep mode, an error while a graph is recorded: use step().
  Tensor operator()(Tensor x);

  /// One training step: clears gradients, computes the loss of each part and its gradients on each device, adds them on
  /// the module's, weighted so that they are those of the mean loss over the whole batch. Returns that loss.
  double step(const data::Batch& batch, const LossFunction& loss);

  nn::Module& module() { return *module_; }                              ///< to save, and to give to the optimizer
  int num_devices() const { return static_cast<int>(devices_.size()); }  ///< replicas
  const std::vector<Device>& devices() const { return devices_; }        ///< one a replica; the first is the module's

 private:
  friend struct DataParallelBackward;

  void update_replicas();
  std::uint64_t next_random_step();

  std::vector<Device> devices_;
  DataParallelOptions options_;
  std::unique_ptr<nn::Module> module_;
  std::vector<std::unique_ptr<nn::Module>> replicas_;
  std::vector<std::vector<Tensor>> parameters_;  // by replica
  std::shared_ptr<DeviceThreads> threads_;
  std::unique_ptr<LockstepStep> lockstep_;
  std::uint64_t steps_ = 0;
};

/// A DataParallel over modules of type M, made from M's constructor arguments.
template <typename M, typename... Args>
DataParallel make_data_parallel(std::vector<Device> devices, const Args&... args) {
  return DataParallel([&] { return std::make_unique<M>(args...); }, std::move(devices));
}

}  // namespace lockstep::distributed
