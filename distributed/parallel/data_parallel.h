#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "lockstep/distributed/parallel/step.h"

namespace lockstep::distributed {

/// Trains one module on several devices of this process in PyTorch's idiom: `loss = f(parallel(x)); loss.backward()`.
/// Semantics of torch.nn.DataParallel, but replicas are made once: before each forward they get the module's values. A
/// face of TrainingStep, whose step it also has.
///
/// The module trained, saved and given to the optimizer is module(). Samples divide by data::partition, so sizes differ
/// by at most one; devices beyond the batch stay idle. Randomness differs by device: device i draws as shard i of the
/// step. Hooks that a program registers on module() and the modules in it run on every replica, with the replica's
/// module, on several threads at once; module().to(dtype) casts the replicas at the next forward.
class DataParallel {
 public:
  /// Calls `factory` for the module and, if there are several devices, once for each. `devices` may repeat; options are
  /// those of TrainingStep that concern one process. Throws Error if `devices` is empty or the modules differ in
  /// structure.
  DataParallel(const TrainingStep::Factory& factory, std::vector<Device> devices, TrainingStepOptions options = {});

  /// The module's forward() over all devices; the result is on the first. Differentiable: backward() runs the replicas'
  /// backward passes side by side. Several threads may call it at once, and run backward(): one waits for the other.
  /// Throws Error where a module's forward() or a loss calls the DataParallel that computes it. Inside of a
  /// RandomKeyGuard draws go on after those made there, as the module's own would.
  Tensor operator()(const Tensor& x) { return step_.forward(x); }
  /// TrainingStep::operator().
  Tensor step(const data::Batch& batch, const LossFunction& loss) { return step_(batch, loss); }

  nn::Module& module() { return step_.module(); }                        ///< to save, and to give to the optimizer
  int num_devices() const { return static_cast<int>(devices_.size()); }  ///< replicas
  const std::vector<Device>& devices() const { return devices_; }        ///< one a replica; the first is the module's

 private:
  std::vector<Device> devices_;
  TrainingStep step_;
};

/// A DataParallel over modules of type M, made from M's constructor arguments.
template <typename M, typename... Args>
DataParallel make_data_parallel(std::vector<Device> devices, const Args&... args) {
  return DataParallel([&] { return std::make_unique<M>(args...); }, std::move(devices));
}

}  // namespace lockstep::distributed
